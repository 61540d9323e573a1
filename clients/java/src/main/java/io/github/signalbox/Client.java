package io.github.signalbox;

import io.github.signalbox.SignalboxException.Busy;
import io.github.signalbox.SignalboxException.Lost;
import io.github.signalbox.SignalboxException.Misuse;
import io.github.signalbox.SignalboxException.NotPermitted;
import io.github.signalbox.SignalboxException.QueueFull;
import io.github.signalbox.SignalboxException.TimedOut;
import io.github.signalbox.SignalboxException.Unreachable;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import javax.net.ssl.SSLContext;

/**
 * Acquires resources of a signalbox server. A program needs one client, which any number of threads share; its permits are
 * bound to no thread. A client renews all of its permits on one daemon thread.
 *
 * <p>Methods that acquire throw {@link Busy}, {@link TimedOut}, {@link QueueFull}, {@link Unreachable},
 * {@link NotPermitted}, {@link Misuse}, and {@link Lost} if an administrator ends the wait. An acquire that fails, or that is
 * interrupted or canceled, leaves nothing behind.
 */
public final class Client implements AutoCloseable {
    /** A longer time makes no difference, and might not fit into nanoseconds. */
    private static final Duration UNREACHABLE_AFTER_MAX = Duration.ofDays(49);

    final Threads threads = new Threads();
    final Servers servers;
    final Duration unreachableAfter;
    /** {@code null}: the program wants no events. */
    final Consumer<? super Event> onEvent;
    final Set<Permit> permits = ConcurrentHashMap.newKeySet();
    final Set<Acquisition> acquisitions = ConcurrentHashMap.newKeySet();
    private final AtomicLong ids = new AtomicLong();
    private volatile boolean isClosed;

    /**
     * Makes a client of the server that the environment names. It connects to no server yet.
     *
     * @throws Misuse if a variable of the environment is wrong
     * @see Builder
     */
    public Client() {
        this(builder());
    }

    private Client(Builder builder) {
        Configuration configuration = Configuration.of(builder);
        unreachableAfter = Servers.min(builder.unreachableAfter, UNREACHABLE_AFTER_MAX);
        onEvent = builder.onEvent;
        servers = new Servers(configuration.urls(), configuration.token(), configuration.tls(), threads);
    }

    /**
     * A client whose configuration does not come from the environment alone.
     *
     * @return its builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /**
     * Acquires, and waits as long as the request says.
     *
     * @param request what to acquire
     * @return the permit, which is renewed until it is released, so release it in any case
     * @throws InterruptedException if the thread is interrupted meanwhile; nothing is left then, which takes at most 2 s
     */
    public Permit acquire(Request request) throws InterruptedException {
        return await(start(request));
    }

    /**
     * Acquires one resource of a declared semaphore. For other names, and further options, there is {@link Request}.
     *
     * @param name the name of the semaphore
     * @param wait how long to wait in the queue if it is in use
     * @return the permit
     * @throws InterruptedException as {@link #acquire(Request)}
     */
    public Permit acquire(String name, Duration wait) throws InterruptedException {
        return acquire(Request.of(name).waitUpTo(wait));
    }

    /**
     * Like {@link #acquire(Request)}, for a program that does something else if the resources are in use.
     *
     * @param request what to acquire
     * @return the permit; empty instead of {@link Busy}, {@link TimedOut} and {@link QueueFull}
     * @throws InterruptedException as {@link #acquire(Request)}
     */
    public Optional<Permit> tryAcquire(Request request) throws InterruptedException {
        try {
            return Optional.of(acquire(request));
        } catch (Busy | TimedOut | QueueFull inUse) {
            return Optional.empty();
        }
    }

    /**
     * Like {@link #acquire(Request)}, without a thread that waits.
     *
     * @param request what to acquire
     * @return the permit, or the failure. To cancel this future itself, or to complete it in another way such as with
     *     {@link CompletableFuture#orTimeout}, gives the acquire up, and nothing is left of it. To cancel a stage that
     *     depends on it has no effect here
     */
    public CompletableFuture<Permit> acquireAsync(Request request) {
        return start(request).result;
    }

    /** Work that needs a permit, or that makes the result of a single flight. */
    @FunctionalInterface
    public interface Work<T, E extends Exception> {
        /**
         * Works.
         *
         * @param permit the permit, which the caller releases
         * @return the result
         * @throws E if the work fails
         */
        T call(Permit permit) throws E;
    }

    /** {@link Work} without a result. */
    @FunctionalInterface
    public interface VoidWork<E extends Exception> {
        /**
         * Works.
         *
         * @param permit the permit, which the caller releases
         * @throws E if the work fails
         */
        void run(Permit permit) throws E;
    }

    /** Looks for the result of a single flight, such as in a cache. */
    @FunctionalInterface
    public interface Lookup<T, E extends Exception> {
        /**
         * Looks for the result.
         *
         * @return the result; empty if it is not there
         * @throws E if that fails
         */
        Optional<T> find() throws E;
    }

    /**
     * Acquires, works and releases.
     *
     * @param request what to acquire
     * @param work is called with the permit
     * @param <T> the type of the result
     * @param <E> what the work throws
     * @return the result of the work
     * @throws E from the work
     * @throws InterruptedException as {@link #acquire(Request)}
     * @throws Lost if the work returns after its permit was lost, as {@link Permit#close}
     */
    public <T, E extends Exception> T call(Request request, Work<T, E> work) throws E, InterruptedException {
        Objects.requireNonNull(work, "work");
        try (Permit permit = acquire(request)) {
            return work.call(permit);
        }
    }

    /**
     * Like {@link #call}, for work without a result.
     *
     * @param request what to acquire
     * @param work is called with the permit
     * @param <E> what the work throws
     * @throws E from the work
     * @throws InterruptedException as {@link #acquire(Request)}
     */
    public <E extends Exception> void run(Request request, VoidWork<E> work) throws E, InterruptedException {
        Objects.requireNonNull(work, "work");
        call(request, permit -> {
            work.run(permit);
            return null;
        });
    }

    /**
     * Acquires a name for a single flight, for programs that do not use {@link #share}.
     *
     * @param request one name without {@link Request#maximum}, and perhaps {@link Request#waitUpTo},
     *     {@link Request#queueMax}, {@link Request#ttl} and {@link Request#label}
     * @return a permit to make the result with, which ends with {@link Permit#releaseDone}; empty if another client has made
     *     the result meanwhile, so that nothing is held
     * @throws InterruptedException as {@link #acquire(Request)}
     */
    public Optional<Permit> acquireShared(Request request) throws InterruptedException {
        Objects.requireNonNull(request, "request");
        return Optional.ofNullable(await(start(request.shared())));
    }

    /**
     * A single flight: of many clients that need the same result, one makes it, and the others wait until it is there.
     *
     * @param request as that of {@link #acquireShared}
     * @param lookup looks for the result
     * @param work makes the result and puts it where the lookup finds it; if it throws, another client makes the result
     * @param <T> the type of the result
     * @param <E> what the lookup and the work throw
     * @return the result of the lookup, or what the work returns
     * @throws E from the lookup or the work
     * @throws InterruptedException as {@link #acquire(Request)}
     */
    public <T, E extends Exception> T share(Request request, Lookup<T, E> lookup, Work<T, E> work)
            throws E, InterruptedException {
        Objects.requireNonNull(request, "request").shared(); // Checked even if the result is there.
        Objects.requireNonNull(lookup, "lookup");
        Objects.requireNonNull(work, "work");
        while (true) {
            Optional<T> found = lookup.find();
            if (found.isPresent()) {
                return found.get();
            }
            Optional<Permit> permit = acquireShared(request);
            if (permit.isPresent()) {
                return make(permit.get(), lookup, work);
            }
        }
    }

    private static <T, E extends Exception> T make(Permit permit, Lookup<T, E> lookup, Work<T, E> work) throws E {
        try {
            // Another client may have made it before the permit was held.
            Optional<T> found = lookup.find();
            T result = found.isPresent() ? found.get() : work.call(permit);
            permit.releaseDone();
            return result;
        } finally {
            permit.release();
        }
    }

    /** Gives all acquires up, and releases all permits. It takes at most some seconds, and can be repeated. */
    @Override
    public void close() {
        isClosed = true;
        CompletableFuture.supplyAsync(() -> {
            List<CompletableFuture<?>> ends = new ArrayList<>();
            List.copyOf(acquisitions).forEach(acquisition -> ends.add(acquisition.close()));
            List.copyOf(permits).forEach(permit -> ends.add(permit.release(false)));
            return CompletableFuture.allOf(ends.toArray(CompletableFuture[]::new));
        }, threads.client).thenCompose(all -> all).join();
    }

    Acquisition start(Request request) {
        Objects.requireNonNull(request, "request");
        if (isClosed) {
            throw new Misuse("the client was closed; make another one");
        }
        Acquisition acquisition = new Acquisition(this, ids.incrementAndGet(), request);
        if (isClosed) {
            threads.client.execute(acquisition::close);
        }
        return acquisition;
    }

    private static Permit await(Acquisition acquisition) throws InterruptedException {
        try {
            return acquisition.result.get();
        } catch (ExecutionException failed) {
            SignalboxException failure = (SignalboxException) failed.getCause();
            failure.fillInStackTrace(); // The caller's is of more use.
            throw failure;
        } catch (InterruptedException interrupted) {
            if (acquisition.result.cancel(true)) {
                acquisition.cleaned.join();
            } else {
                acquisition.result.thenAccept(permit -> {
                    if (permit != null) {
                        permit.release();
                    }
                });
            }
            throw interrupted;
        }
    }

    /**
     * The configuration of a client. What is missing is taken from the environment, as stated. Variables for proxies, and
     * properties of the system for them, are not used.
     */
    public static final class Builder {
        /** {@code null}: those of the environment. */
        List<String> urls;
        String token;
        String tokenFile;
        boolean isTokenOverPlain;
        String ca;
        SSLContext tls;
        private Duration unreachableAfter = Duration.ofSeconds(10);
        private Consumer<? super Event> onEvent;

        private Builder() {}

        /**
         * The HTTP listener of a server, or those of all nodes of a cluster, of which the one that leads is found. Missing:
         * {@code SIGNALBOX_URL}, with commas between several; or else {@code http://127.0.0.1:11217}.
         *
         * @param urls the base URLs, one or more
         * @return this builder
         * @throws Misuse if there are none
         */
        public Builder url(String... urls) {
            for (String url : Objects.requireNonNull(urls, "urls")) {
                Objects.requireNonNull(url, "url");
            }
            if (urls.length == 0) {
                throw new Misuse("url is given without one; give that of each node, or do not call it");
            }
            this.urls = List.of(urls);
            return this;
        }

        /**
         * The token, which proves the rights of the program. Missing: {@code SIGNALBOX_TOKEN}, unless there is a file.
         *
         * @param token the token, without the white space around it
         * @return this builder
         */
        public Builder token(String token) {
            this.token = token;
            return this;
        }

        /**
         * The file with the token, which is read again every few seconds and when the token is refused, so its content may be
         * replaced. A program gives this or {@link #token}. Missing both: {@code SIGNALBOX_TOKEN_FILE}.
         *
         * @param file the name of the file
         * @return this builder
         */
        public Builder tokenFile(String file) {
            tokenFile = file;
            return this;
        }

        /**
         * Permits sending the token to other machines without TLS, where others may read it. So does
         * {@code SIGNALBOX_TOKEN_OVER_PLAIN=1}.
         *
         * @return this builder
         */
        public Builder tokenOverPlain() {
            isTokenOverPlain = true;
            return this;
        }

        /**
         * The file with the certificates, in PEM, of the authorities that are trusted for {@code https}. Missing:
         * {@code SIGNALBOX_CA}; or else those of Java.
         *
         * @param file the name of the file
         * @return this builder
         */
        public Builder ca(String file) {
            ca = file;
            return this;
        }

        /**
         * All settings of TLS, such as for a certificate of the client. {@link #ca} is not used then.
         *
         * @param context the settings
         * @return this builder
         */
        public Builder tls(SSLContext context) {
            tls = context;
            return this;
        }

        /**
         * How long an acquire tries to reach a server, also one that does not wait; 10 s unless given.
         *
         * @param time the time
         * @return this builder
         * @throws Misuse if it is negative
         */
        public Builder unreachableAfter(Duration time) {
            if (Objects.requireNonNull(time, "time").isNegative()) {
                throw new Misuse("unreachableAfter is " + time + "; use 0 s or more");
            }
            unreachableAfter = time;
            return this;
        }

        /**
         * Calls a listener with what happens to permits. The events of one permit are reported one after the other, on a thread
         * that may be blocked.
         *
         * @param listener is given the events
         * @return this builder
         */
        public Builder onEvent(Consumer<? super Event> listener) {
            onEvent = listener;
            return this;
        }

        /**
         * Makes the client. It connects to no server yet.
         *
         * @return the client
         * @throws Misuse if the configuration is wrong
         */
        public Client build() {
            return new Client(this);
        }
    }
}
