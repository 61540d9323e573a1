package examples;

import io.github.signalbox.Client;
import io.github.signalbox.Permit;
import java.time.Duration;

/**
 * Each job gets its own of several numbered things. An administrator has declared them: {@code signalbox declare port --capacity
 * 4 --slots}.
 */
public final class Slots {
    private Slots() {}

    public static void main(String[] arguments) throws InterruptedException {
        try (Client client = new Client(); Permit permit = client.acquire("port", Duration.ofMinutes(1))) {
            System.out.println("uses the port " + (8000 + permit.slots().get(0)));
        }
    }
}
