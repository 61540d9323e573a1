package examples;

import io.github.signalbox.Client;
import io.github.signalbox.Request;
import java.time.Duration;

/** Two GPUs and a licence, all or none, without deadlocks. */
public final class SeveralNames {
    private SeveralNames() {}

    public static void main(String[] arguments) throws InterruptedException {
        Request both = Request.of("gpus").maximum(8).resources(2).also("licence").maximum(1)
                .waitUpTo(Duration.ofMinutes(1));
        try (Client client = new Client()) {
            client.run(both, permit -> System.out.println("has two GPUs and the licence"));
        }
    }
}
