package examples;

import io.github.signalbox.Client;
import io.github.signalbox.Permit;
import io.github.signalbox.Request;
import io.github.signalbox.SignalboxException.Lost;
import io.github.signalbox.SignalboxException.TimedOut;
import io.github.signalbox.SignalboxException.Unreachable;
import java.time.Duration;

/** A leader acts until it is stopped, loses the lead or is to give it back, and the next one takes over. */
public final class Leader {
    private static final Request LEAD =
            Request.of("scheduler/leader").maximum(1).waitUpTo(Duration.ofDays(1)).ttl(Duration.ofSeconds(15));

    private Leader() {}

    public static void main(String[] arguments) throws InterruptedException {
        int terms = arguments.length == 0 ? Integer.MAX_VALUE : Integer.parseInt(arguments[0]);
        try (Client client = new Client()) {
            while (terms-- > 0) {
                try (Permit permit = client.acquire(LEAD)) {
                    lead(permit);
                } catch (Lost | TimedOut | Unreachable e) {
                    System.out.println(e.getMessage());
                }
            }
        }
    }

    private static void lead(Permit permit) throws InterruptedException {
        Thread thread = Thread.currentThread();
        permit.onRevoking(grace -> thread.interrupt()); // There is time to end in order.
        permit.onLost(reason -> thread.interrupt());
        System.out.println("leads");
        for (int step = 0; step < 3; step++) {
            permit.check();
            Thread.sleep(10); // A step, which sends permit.fence() with each write.
        }
    }
}
