package io.github.signalbox;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

/**
 * Renews the lease of a permit until it is over or revoked: one request always waits for a change. All of it runs on the
 * client's thread.
 */
final class Renewal {
    /** A permit that is released sooner costs the server no renewal. */
    private static final Duration SHORT_WORK = Duration.ofMillis(20);
    /** The end is checked at least this often, because timers stand still while the machine is suspended. */
    private static final Duration WATCH_TIME = Duration.ofSeconds(1);
    private static final Duration POLL_MAX = Duration.ofSeconds(20);

    private final Permit permit;
    private final Client client;
    private final Servers.Pauses pauses = new Servers.Pauses();
    private CompletableFuture<Answer> call;

    Renewal(Permit permit, Client client) {
        this.permit = permit;
        this.client = client;
    }

    /** How long a request may wait for a change of a lease with this time to live. */
    static Duration poll(Duration ttl) {
        return Servers.min(ttl.dividedBy(4), POLL_MAX);
    }

    /**
     * Begins. A permit that was granted late has less time left, so it is renewed earlier.
     *
     * @param sent the time of {@link LeaseClock} when the request was sent that was granted
     */
    void start(long sent) {
        watch();
        client.threads.later(SHORT_WORK, () -> {
            Duration rest = poll(permit.ttl()).minusNanos(LeaseClock.now() - sent);
            renew(rest.isNegative() ? Duration.ZERO : rest);
        });
    }

    /** Ends the request that waits. */
    void cancel() {
        if (call != null) {
            call.cancel(true);
        }
    }

    /** Notices that the validity is over. */
    private void watch() {
        if (permit.over() == null) {
            client.threads.later(Servers.min(permit.left(), WATCH_TIME), this::watch);
        }
    }

    private void renew(Duration poll) {
        if (permit.over() != null) {
            return;
        }
        // So that a connection that has broken silently leaves time for another one.
        Duration patience = Servers.min(permit.ttl().dividedBy(3), Servers.ANSWER_TIME);
        call = client.servers.post("renew", Map.of("keys", List.of(permit.key())), poll, patience);
        call.whenComplete(this::renewed);
    }

    private void renewed(Answer answer, Throwable failure) {
        if (permit.over() != null) {
            return;
        }
        if (failure != null) {
            repeat(Permit.UNREACHABLE, failure);
            return;
        }
        Answer lease = answer.lease();
        switch (lease.state()) {
            case "held" -> {
                permit.extend(lease.until());
                pauses.reset();
                renew(poll(permit.ttl()));
            }
            case "revoking" -> permit.revoke(lease.until());
            case "lost", "done", "queued" ->
                permit.lose(lease.text("reason").isEmpty() ? Permit.EXPIRED : lease.text("reason"));
            default -> {
                // The server slows down a client that shows the same token again and again.
                pauses.lengthen();
                repeat(Permit.NOT_PERMITTED, null);
            }
        }
    }

    private void repeat(String reason, Throwable failure) {
        permit.fail(reason);
        // A server without room for a request that waits answers this one.
        client.threads.later(pauses.next(permit.ttl().dividedBy(4), failure), () -> renew(Duration.ZERO));
    }
}
