package io.github.signalbox;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** A signalbox server that ends with its test. */
final class Server implements AutoCloseable {
    /** Bounds every wait for a condition. */
    static final Duration PATIENCE = Duration.ofSeconds(30);

    private static final Path BINARY = Path.of(
            System.getenv().getOrDefault("SIGNALBOX_BIN", "../../target/debug/signalbox")).toAbsolutePath();
    private static final Pattern READY = Pattern.compile("signalbox is ready .* counter=(\\S+) .* http=(\\S+)");
    private static final HttpClient HTTP = HttpClient.newHttpClient();

    final String url;
    final String counter;
    private final Process process;

    Server(String... options) throws IOException {
        List<String> command = new ArrayList<>(
                List.of(BINARY.toString(), "serve", "--counter-port", "0", "--semaphore-port", "0"));
        command.addAll(List.of(options));
        if (!command.contains("--http-port")) {
            command.addAll(List.of("--http-port", "0"));
        }
        process = new ProcessBuilder(command).redirectErrorStream(true).start();
        BufferedReader lines = process.inputReader();
        StringBuilder said = new StringBuilder();
        for (String line; (line = lines.readLine()) != null; ) {
            said.append(line).append('\n');
            Matcher ready = READY.matcher(line);
            if (ready.find()) {
                counter = ready.group(1);
                url = "http://" + ready.group(2);
                Thread reader = new Thread(() -> lines.lines().forEach(rest -> {}));
                reader.setDaemon(true);
                reader.start();
                return;
            }
        }
        throw new IOException("the server has not started: " + said);
    }

    /** A server with these further rules of access, and a file of tokens for {@link #token}. */
    static Server guarded(Path folder, String rules) throws IOException, InterruptedException {
        run(List.of(BINARY.toString(), "token", "create", "other", "--rights", "read", "--file", folder + "/tokens.toml"), "127.0.0.1");
        Path config = folder.resolve("signalbox.toml");
        Files.writeString(config, "[access]\ntokens = \"" + folder + "/tokens.toml\"\n" + rules);
        return new Server("--config", config.toString());
    }

    /** Runs {@code signalbox token}, and has the server read the tokens again. */
    String token(Path folder, String... arguments) throws IOException, InterruptedException {
        List<String> command = new ArrayList<>(List.of(BINARY.toString(), "token"));
        command.addAll(Arrays.asList(arguments));
        command.addAll(List.of("--file", folder + "/tokens.toml"));
        String said = run(command, counter).strip();
        signal("HUP");
        return said;
    }

    @Override
    public void close() {
        process.destroyForcibly();
        process.onExit().join();
    }

    void signal(String name) throws IOException, InterruptedException {
        run(List.of("sh", "-c", "kill -" + name + " " + process.pid()), "127.0.0.1");
    }

    Client client() {
        return Client.builder().url(url).build();
    }

    /** Runs the command line. */
    String command(String... arguments) throws IOException, InterruptedException {
        List<String> command = new ArrayList<>(List.of(BINARY.toString()));
        command.addAll(List.of(arguments));
        return run(command, counter);
    }

    private static String run(List<String> command, String server) throws IOException, InterruptedException {
        ProcessBuilder builder = new ProcessBuilder(command).redirectErrorStream(true);
        builder.environment().put("SIGNALBOX_SERVER", server);
        Process process = builder.start();
        String said;
        try (InputStream out = process.getInputStream()) {
            said = new String(out.readAllBytes(), StandardCharsets.UTF_8);
        }
        if (process.waitFor() != 0) {
            throw new IOException(command + ": " + said);
        }
        return said;
    }

    String get(String path) throws IOException, InterruptedException {
        return HTTP.send(HttpRequest.newBuilder(URI.create(url + path)).timeout(PATIENCE).build(),
                HttpResponse.BodyHandlers.ofString()).body();
    }

    private long total(String path) throws IOException, InterruptedException {
        return new Answer(200, Json.object(get(path)), 0).number("total"); // 0 of a name that does not exist.
    }

    long holders(String name) throws IOException, InterruptedException {
        return total("/api/v1/holders?kind=counter&name=" + URLEncoder.encode(name, StandardCharsets.UTF_8));
    }

    long waiters(String name) throws IOException, InterruptedException {
        return total("/api/v1/waiters?kind=counter&name=" + URLEncoder.encode(name, StandardCharsets.UTF_8));
    }

    long sessions() throws IOException, InterruptedException {
        return total("/api/v1/sessions");
    }

    static void eventually(String what, Callable<Boolean> condition) {
        try {
            for (long end = System.nanoTime() + PATIENCE.toNanos(); !condition.call(); Thread.sleep(5)) {
                if (System.nanoTime() > end) {
                    throw new AssertionError("not in time: " + what);
                }
            }
        } catch (Exception e) {
            throw new AssertionError(what, e);
        }
    }

    /** Handles a request that a front has received. */
    interface Handler {
        void handle(String path, Exchange exchange) throws Exception;
    }

    /** A request that a front has. */
    static final class Exchange {
        private final HttpExchange http;
        private final Server server;
        final String body;
        private HttpResponse<String> answer;

        Exchange(HttpExchange http, Server server) throws IOException {
            this.http = http;
            this.server = server;
            body = new String(http.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
        }

        /** Sends it to the server, and waits for the answer. */
        Exchange pass() throws IOException, InterruptedException {
            answer = HTTP.send(HttpRequest.newBuilder(URI.create(server.url + http.getRequestURI()))
                    .header("Content-Type", "application/json")
                    .POST(HttpRequest.BodyPublishers.ofString(body)).build(), HttpResponse.BodyHandlers.ofString());
            return this;
        }

        void give() throws IOException {
            give(answer.statusCode(), answer.body());
        }

        void give(int status, String body) throws IOException {
            byte[] bytes = body.getBytes(StandardCharsets.UTF_8);
            http.sendResponseHeaders(status, bytes.length);
            http.getResponseBody().write(bytes);
        }
    }

    /** A proxy before this server; a request that the handler does not answer ends with its connection. */
    HttpServer front(Handler handler) throws IOException {
        HttpServer front = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        front.setExecutor(Executors.newCachedThreadPool(step -> {
            Thread thread = new Thread(step);
            thread.setDaemon(true);
            return thread;
        }));
        front.createContext("/api/v1/lease/", http -> {
            try (http) {
                handler.handle(http.getRequestURI().getPath().replaceAll(".*/", ""), new Exchange(http, this));
            } catch (Exception e) {
                // The connection is closed.
            }
        });
        front.start();
        return front;
    }

    static String url(HttpServer front) {
        return "http://127.0.0.1:" + front.getAddress().getPort();
    }
}
