package examples;

import io.github.signalbox.Client;
import io.github.signalbox.Request;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.time.Duration;
import java.util.Optional;

/** Of many processes that need the same page at once, one renders it, and the others wait for it. The cache is a file. */
public final class SingleFlight {
    private SingleFlight() {}

    public static void main(String[] arguments) throws IOException, InterruptedException {
        Path cache = Path.of(arguments[0]);
        try (Client client = new Client()) {
            Request page = Request.of("page/42").waitUpTo(Duration.ofSeconds(30));
            String text = client.<String, IOException>share(page,
                    () -> Files.exists(cache) ? Optional.of(Files.readString(cache)) : Optional.empty(),
                    permit -> {
                        String rendered = "rendered by " + ProcessHandle.current().pid();
                        Path file = Files.writeString(Path.of(cache + "." + permit.fence()), rendered);
                        Files.move(file, cache, StandardCopyOption.ATOMIC_MOVE);
                        return rendered;
                    });
            System.out.println(text);
        }
    }
}
