package io.github.signalbox;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;

/**
 * The threads of a client. None of them keeps the program running, and those that have nothing to do end.
 *
 * <p>The renewals, retries and releases of all permits run on one thread, {@link #client}, which nothing may block: code
 * of the program and lookups of host names run on {@link #others}.
 */
final class Threads {
    private static final long IDLE_SECONDS = 10;

    final ScheduledThreadPoolExecutor client = new ScheduledThreadPoolExecutor(1, named("signalbox"));
    final ExecutorService others = Executors.newCachedThreadPool(named("signalbox-other"));

    Threads() {
        client.setKeepAliveTime(IDLE_SECONDS, TimeUnit.SECONDS);
        client.allowCoreThreadTimeOut(true);
        client.setRemoveOnCancelPolicy(true);
    }

    /** Runs a step on the client's thread after this time. */
    Future<?> later(Duration pause, Runnable step) {
        return client.schedule(step, pause.toNanos(), TimeUnit.NANOSECONDS);
    }

    /** Calls the program's listeners one after the other, on a thread that they may block. */
    final class Calls {
        private CompletableFuture<Void> last = CompletableFuture.completedFuture(null);

        synchronized void add(Runnable listener) {
            last = last.thenRunAsync(() -> {
                try {
                    listener.run();
                } catch (Throwable thrown) {
                    Thread thread = Thread.currentThread();
                    thread.getUncaughtExceptionHandler().uncaughtException(thread, thrown);
                }
            }, others);
        }
    }

    private static ThreadFactory named(String name) {
        return step -> {
            Thread thread = new Thread(step, name);
            thread.setDaemon(true);
            return thread;
        };
    }
}
