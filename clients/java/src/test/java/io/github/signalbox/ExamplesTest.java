package io.github.signalbox;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The examples, as programs. */
class ExamplesTest {
    private static Server server;

    @BeforeAll
    static void start() throws Exception {
        server = new Server();
    }

    @AfterAll
    static void stop() {
        server.close();
    }

    /** Runs an example to its end, and returns its lines. */
    private static List<String> run(String example, String... arguments) throws Exception {
        List<String> command = new ArrayList<>(List.of(System.getProperty("java.home") + "/bin/java", "-cp",
                System.getProperty("java.class.path"), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "examples." + example));
        command.addAll(List.of(arguments));
        ProcessBuilder builder = new ProcessBuilder(command).redirectErrorStream(true);
        builder.environment().put("SIGNALBOX_URL", server.url);
        Process process = builder.start();
        String said = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        assertEquals(0, process.waitFor(), said);
        return said.lines().toList();
    }

    @Test
    void workerPool() throws Exception {
        assertEquals(12, run("WorkerPool").stream().filter(line -> line.endsWith(" is done")).count());
    }

    @Test
    void cronJob() throws Exception {
        try (Client client = server.client()) {
            client.run(Request.of("nightly-report").maximum(1),
                    permit -> assertEquals(List.of("another machine runs the job"), run("CronJob")));
        }
        assertEquals(List.of("this machine runs the job"), run("CronJob"));
    }

    @Test
    void leader() throws Exception {
        assertEquals(List.of("leads", "leads"), run("Leader", "2"));
    }

    @Test
    void slots() throws Exception {
        server.command("declare", "port", "--capacity", "4", "--slots");
        assertEquals(List.of("uses the port 8000"), run("Slots"));
    }

    @Test
    void severalNames() throws Exception {
        assertEquals(List.of("has two GPUs and the licence"), run("SeveralNames"));
    }

    @Test
    void singleFlight(@TempDir Path folder) throws Exception {
        String cache = folder.resolve("page").toString();
        List<String> first = run("SingleFlight", cache);
        assertTrue(first.get(0).startsWith("rendered by "));
        assertEquals(first, run("SingleFlight", cache));
    }

    @Test
    void fencedTable() throws Exception {
        assertEquals(List.of("the successor has written: true", "the stopped writer has written: false"),
                run("FencedTable"));
    }
}
