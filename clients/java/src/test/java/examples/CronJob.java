package examples;

import io.github.signalbox.Client;
import io.github.signalbox.Permit;
import io.github.signalbox.Request;
import java.util.Optional;

/** A job that is in the crontab of each machine: the first machine runs it, and the others have nothing to do. */
public final class CronJob {
    private CronJob() {}

    public static void main(String[] arguments) throws InterruptedException {
        try (Client client = new Client()) {
            Optional<Permit> turn = client.tryAcquire(Request.of("nightly-report").maximum(1));
            if (turn.isEmpty()) {
                System.out.println("another machine runs the job");
                return;
            }
            try (Permit permit = turn.get()) {
                System.out.println("this machine runs the job");
                permit.check(); // Before each step.
            }
        }
    }
}
