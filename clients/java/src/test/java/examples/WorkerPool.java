package examples;

import io.github.signalbox.Client;
import io.github.signalbox.Request;
import java.time.Duration;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/** Jobs on many machines: each works only while it holds one of three places, and waits for one in a queue of at most 100. */
public final class WorkerPool {
    private WorkerPool() {}

    public static void main(String[] arguments) throws InterruptedException {
        Request place = Request.of("pool/render").maximum(3).waitUpTo(Duration.ofHours(1)).queueMax(100);
        try (Client client = new Client()) {
            ExecutorService workers = Executors.newFixedThreadPool(6);
            for (int i = 1; i <= 12; i++) {
                int job = i;
                workers.submit(() -> client.call(place.label("job " + job), permit -> {
                    System.out.println("job " + job + " is done");
                    return job;
                }));
            }
            workers.shutdown();
            workers.awaitTermination(1, TimeUnit.HOURS);
        }
    }
}
