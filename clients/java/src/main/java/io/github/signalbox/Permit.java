package io.github.signalbox;

import io.github.signalbox.SignalboxException.Lost;
import io.github.signalbox.SignalboxException.Misuse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.function.Consumer;

/**
 * Resources that are held until they are released or lost. Any thread may use a permit, and any other release it. A permit
 * that nothing refers to is held all the same, so release it in any case:
 *
 * <pre>{@code
 * try (Permit permit = client.acquire(request)) {
 *     work();
 *     permit.check(); // Before each step.
 * }
 * }</pre>
 */
public final class Permit implements AutoCloseable {
    static final String EXPIRED = "expired";
    static final String UNREACHABLE = "unreachable";
    static final String NOT_PERMITTED = "not_permitted";
    static final String REVOKED = "revoked";
    private static final String RELEASED = "released";

    /** How long giving back may take: for a program that waits for it, and after a loss. */
    private static final Duration RELEASE_TIME = Duration.ofSeconds(5);
    static final Duration CLEANUP_TIME = Duration.ofSeconds(2);

    private final Client client;
    private final long id;
    private final Request request;
    private final String key;
    private final Duration ttl;
    private final long fence;
    private final List<List<Integer>> slots;
    private final Threads.Calls calls;
    private final Renewal renewal;

    // The permit's monitor guards what follows. Nothing waits while it has it.
    private long until;
    /** Why the permit is lost if it is lost at {@link #until}. */
    private String reason = EXPIRED;
    /** Why the permit is over; {@code null} while it is held. */
    private String over;
    private boolean isRevoking;
    /** Whether the program knows that the permit is lost, so that closing it does not say so again. */
    private boolean isLossKnown;
    /** {@code null}: the program has not released the permit. */
    private CompletableFuture<Void> release;
    private final List<Consumer<? super String>> onLost = new ArrayList<>();
    private final List<Consumer<? super Duration>> onRevoking = new ArrayList<>();

    /** Begins to renew the lease that an answer has granted. */
    Permit(Client client, long id, Request request, String key, Answer answer, Threads.Calls calls) {
        this.client = client;
        this.id = id;
        this.request = request;
        this.key = key;
        this.calls = calls;
        ttl = Duration.ofMillis(answer.number("ttl_ms"));
        fence = answer.fence();
        slots = answer.slots();
        until = answer.until();
        renewal = new Renewal(this, client);
        client.permits.add(this);
        synchronized (this) {
            report(Event.Kind.ACQUIRED);
        }
        renewal.start(answer.sent());
    }

    /**
     * Reads the clock: whether the permit is valid now, also in a program that was stopped or on a machine that was
     * suspended. A program can be stopped between the check and the step after it, so a store that two writers would harm
     * has to check {@link #fence}.
     *
     * @throws Lost if the permit is lost or released
     */
    public void check() {
        String over = over();
        if (over != null) {
            synchronized (this) {
                isLossKnown = true;
            }
            throw lost(over);
        }
    }

    /**
     * How long the permit is valid if no server answers from now on.
     *
     * @return the time; zero if it is lost or released
     */
    public Duration timeLeft() {
        return over() != null ? Duration.ZERO : left();
    }

    /**
     * The fencing token: the number of the grant, which is greater than those of all grants of the name before. Send it with
     * each write to a store, and let the store refuse a lower one than it has seen. Of a permit for several names, it is the
     * fencing token of the first name in the order of their bytes, if that name comes first in this order in all requests for it.
     *
     * @return the number, which is positive
     */
    public long fence() {
        return fence;
    }

    /**
     * The slots of the first name.
     *
     * @return their numbers; empty if that is not a declared semaphore with numbered slots
     */
    public List<Integer> slots() {
        return slots.isEmpty() ? List.of() : slots.get(0);
    }

    /**
     * The slots of one of several names.
     *
     * @param name the name
     * @return their numbers; empty if the name has none
     */
    public List<Integer> slots(String name) {
        int index = request.indexOf(name);
        return index < 0 || index >= slots.size() ? List.of() : slots.get(index);
    }

    /**
     * Calls a listener when the permit is lost, or soon if it is lost already. It is not called for a permit that the program has
     * released. Listeners of one permit are called one after the other, on a thread that they may block.
     *
     * @param listener is given the reason: {@code expired} (the lease ended before it was renewed, or the server was
     *     restarted without a data directory), {@code revoked} or {@code removed} (by an administrator), {@code unreachable}
     *     (no server answered until the lease ended), {@code not_permitted} (a server refused to renew it), or another
     *     code of the server
     */
    public synchronized void onLost(Consumer<? super String> listener) {
        onLost.add(Objects.requireNonNull(listener, "listener"));
        if (over != null) {
            tellLost(listener);
        }
    }

    /**
     * Calls a listener when an administrator takes the permit away, or soon if it is being taken away. The permit is valid
     * for a grace period, so that the work can stop in order and release it.
     *
     * @param listener is given how long the permit is valid from now on
     * @see #onLost
     */
    public synchronized void onRevoking(Consumer<? super Duration> listener) {
        onRevoking.add(Objects.requireNonNull(listener, "listener"));
        if (isRevoking && over == null) {
            calls.add(() -> listener.accept(timeLeft()));
        }
    }

    /**
     * Gives the resources back, so that others can get them at once. It can be repeated, does not heed interrupts, and takes
     * at most 5 s. If no server has confirmed it by then, others get the resources after the time to live.
     */
    public void release() {
        releaseAsync().toCompletableFuture().join();
    }

    /**
     * Like {@link #release}, without waiting for it.
     *
     * @return completes when {@link #release} would return, and never with a failure
     */
    public CompletionStage<Void> releaseAsync() {
        return release(false);
    }

    /**
     * Like {@link #release}, for a permit of {@link Client#acquireShared}: the result is there, and all clients that wait for it
     * are informed.
     *
     * @throws Misuse if it is another permit, which stays held
     */
    public void releaseDone() {
        if (!request.isShared()) {
            throw new Misuse("the permit for " + request.described() + " is not one of acquireShared; use release");
        }
        release(true).join();
    }

    /**
     * Releases the permit, at the end of a block of {@code try}.
     *
     * @throws Lost if the permit was lost before, and neither {@link #check} nor a listener of {@link #onLost} has said so
     */
    @Override
    public void close() {
        String over = over();
        boolean isUnknown;
        synchronized (this) {
            isUnknown = over != null && !over.equals(RELEASED) && !isLossKnown;
            isLossKnown = true;
        }
        release();
        if (isUnknown) {
            throw lost(over);
        }
    }

    /** Releases; {@code isDone}: the work of a single flight is done. */
    CompletableFuture<Void> release(boolean isDone) {
        over(); // A loss that nothing has noticed yet comes first.
        CompletableFuture<Void> release = new CompletableFuture<>();
        synchronized (this) {
            if (this.release != null) {
                return this.release.copy();
            }
            this.release = release;
            if (over != null) {
                release.complete(null);
                return release;
            }
            over = RELEASED;
        }
        client.threads.client.execute(() -> client.servers.release(key, isDone, RELEASE_TIME).thenRun(() -> {
            client.permits.remove(this);
            synchronized (this) {
                report(Event.Kind.RELEASED);
            }
            release.completeAsync(() -> null, client.threads.others);
        }));
        return release.copy();
    }

    String key() {
        return key;
    }

    Duration ttl() {
        return ttl;
    }

    /** Why the permit is over, by the clock; {@code null} while it is held. */
    String over() {
        synchronized (this) {
            if (over == null && isExpired()) {
                lose(reason);
                // A renewal may arrive late.
                client.threads.client.execute(() -> client.servers.release(key, false, CLEANUP_TIME));
            }
            return over;
        }
    }

    private boolean isExpired() {
        return LeaseClock.now() - until >= 0;
    }

    synchronized Duration left() {
        return Duration.ofNanos(Math.max(until - LeaseClock.now(), 0));
    }

    /** Moves the end of the validity. */
    synchronized void extend(long until) {
        if (over == null && !isExpired()) {
            this.until = Math.max(this.until, until);
            reason = EXPIRED;
            report(Event.Kind.RENEWED);
        }
    }

    /** An administrator takes the resources away at this time. */
    synchronized void revoke(long until) {
        if (over == null && !isExpired()) {
            this.until = until;
            reason = REVOKED;
            isRevoking = true;
            report(Event.Kind.REVOKING);
            onRevoking.forEach(listener -> calls.add(() -> listener.accept(left())));
        }
    }

    /** Why the lease is not renewed. A reason that is found after the end of the lease does not count. */
    synchronized void fail(String reason) {
        if (!isExpired()) {
            this.reason = reason;
        }
    }

    /** Ends the permit, unless it is over. */
    synchronized void lose(String reason) {
        if (over == null) {
            over = reason;
            client.permits.remove(this);
            client.threads.client.execute(renewal::cancel);
            report(Event.Kind.LOST);
            onLost.forEach(this::tellLost);
        }
    }

    private void tellLost(Consumer<? super String> listener) {
        calls.add(() -> {
            synchronized (this) {
                if (release != null) {
                    return;
                }
                isLossKnown = true;
            }
            listener.accept(over);
        });
    }

    private void report(Event.Kind kind) {
        if (client.onEvent != null) {
            Duration left = over == null ? left() : Duration.ZERO;
            String reason = kind == Event.Kind.LOST ? over : "";
            Event event = new Event(kind, id, request.name(), 0, fence, left, reason);
            calls.add(() -> client.onEvent.accept(event));
        }
    }

    private Lost lost(String reason) {
        String what = "the permit for " + request.described() + " ";
        return new Lost(reason.equals(RELEASED)
                ? what + "was released; acquire again"
                : what + "is lost: " + SignalboxException.why(reason) + "; others may hold it, so stop the work", reason, "");
    }
}
