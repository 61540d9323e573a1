package io.github.signalbox;

import io.github.signalbox.Servers.Unanswered;
import io.github.signalbox.SignalboxException.Misuse;
import io.github.signalbox.SignalboxException.Unreachable;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.HexFormat;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

/** Repeats a request until it is granted, refused or given up. All of it runs on the client's thread. */
final class Acquisition {
    private static final SecureRandom RANDOM = new SecureRandom();

    /**
     * The permit; {@code null}, if another client has made the result of the single flight. A program that completes it,
     * such as by canceling it, gives the acquire up.
     */
    final CompletableFuture<Permit> result = new CompletableFuture<>();
    /** Completes when nothing of an acquire that has failed or was given up is left. */
    final CompletableFuture<Void> cleaned = new CompletableFuture<>();

    private final Client client;
    private final long id;
    private final Request request;
    private final String key;
    private final Map<String, Object> json;
    private final Duration poll;
    private final long begun = LeaseClock.now();
    private final Servers.Pauses pauses = new Servers.Pauses();
    private final Threads.Calls calls;

    private CompletableFuture<Answer> call;
    private long answered = begun;
    /** Whether a server has a request, or may still receive one. */
    private boolean mayArrive;
    private boolean isOver;

    Acquisition(Client client, long id, Request request) {
        this.client = client;
        this.id = id;
        this.request = request;
        calls = client.threads.new Calls();
        key = drawKey();
        json = request.json(key);
        // A request that may not be in the queue has its answer at once.
        poll = Servers.min(Renewal.poll(request.expectedTtl()), request.queueTime());
        client.acquisitions.add(this);
        result.whenComplete((permit, failure) -> client.threads.client.execute(this::giveUp));
        // The first request has its answer at once, so that the program learns its position.
        client.threads.client.execute(() -> send(Duration.ZERO));
    }

    private static String drawKey() {
        byte[] random = new byte[16];
        RANDOM.nextBytes(random);
        return HexFormat.of().formatHex(random);
    }

    private void send(Duration poll) {
        if (isOver) {
            return;
        }
        call = client.servers.post("acquire", json, poll, Servers.ANSWER_TIME);
        call.whenComplete(this::receive);
    }

    private void receive(Answer answer, Throwable failure) {
        if (isOver) {
            return;
        }
        // The requests to other servers are not awaited.
        mayArrive |= failure instanceof Unanswered unanswered && !unanswered.isUnsent() || client.servers.areSeveral();
        if (failure != null) {
            repeat(failure);
        } else if (answer.status() >= 400) {
            fail(refused(answer));
        } else if (answer.state().equals("held") && answer.until() - LeaseClock.now() > 0) {
            Permit permit = new Permit(client, id, request, key, answer, calls);
            end();
            client.acquisitions.remove(this);
            client.threads.others.execute(() -> {
                if (!result.complete(permit)) {
                    permit.release(false).thenRun(() -> cleaned.complete(null));
                }
            });
        } else if (answer.state().equals("done")) {
            end();
            mayArrive = true;
            clean();
            client.threads.others.execute(() -> result.complete(null));
        } else if (answer.state().equals("queued")) {
            queued(answer);
        } else {
            repeat(new Unanswered("the answer came too late, or is not one of signalbox"));
        }
    }

    private void queued(Answer answer) {
        mayArrive = true;
        answered = LeaseClock.now();
        pauses.reset();
        json.remove("place");
        if (!answer.text("place").isEmpty()) {
            json.put("place", answer.text("place"));
        }
        if (client.onEvent != null) {
            long position = answer.number("position");
            Event event = new Event(Event.Kind.WAITING, id, request.name(), position, 0, Duration.ZERO, "");
            calls.add(() -> client.onEvent.accept(event));
        }
        // The server's wait begins again after its restart.
        if (answered - begun > request.queueTime().plus(client.unreachableAfter).toNanos()) {
            fail(SignalboxException.timedOut(request));
        } else {
            send(poll);
        }
    }

    private void repeat(Throwable failure) {
        if (isFinal(failure) || LeaseClock.now() - answered >= client.unreachableAfter.toNanos()) {
            fail(unreachable(failure));
            return;
        }
        // A server without room for a request that waits answers this one.
        client.threads.later(pauses.next(Servers.ANSWER_TIME, failure), () -> send(Duration.ZERO));
    }

    private SignalboxException refused(Answer answer) {
        return SignalboxException.refused(request, answer.errorCode(), answer.errorMessage(), client.servers.hasToken());
    }

    /** Whether repeating does not help. */
    private static boolean isFinal(Throwable failure) {
        return failure instanceof Unanswered unanswered && (unanswered.isUntrusted() || unanswered.isForeign());
    }

    private SignalboxException unreachable(Throwable failure) {
        if (failure instanceof Unanswered unanswered && unanswered.isForeign()) {
            return new Misuse(request.failure() + failure.getMessage(), "", failure);
        }
        if (failure instanceof Unanswered unanswered && unanswered.answer != null
                && unanswered.answer.errorCode().equals("limit_reached")) {
            return refused(unanswered.answer);
        }
        String what = isFinal(failure) ? "no server is trusted" : "no server could answer for "
                + client.unreachableAfter.toMillis() / 1000.0 + " s";
        return new Unreachable(request.failure() + what + ", nothing is held; "
                + "check the servers and the network (last attempt: " + failure.getMessage() + ")", failure);
    }

    /** Fails, since the client is being closed. */
    CompletableFuture<Void> close() {
        if (!isOver) {
            mayArrive |= call != null;
            fail(new Misuse(request.failure() + "the client was closed"));
        }
        return cleaned;
    }

    private void giveUp() {
        if (!isOver) {
            mayArrive |= call != null;
            end();
            clean();
        }
    }

    private void fail(SignalboxException failure) {
        end();
        clean().thenRunAsync(() -> result.completeExceptionally(failure), client.threads.others);
    }

    private void end() {
        isOver = true;
        if (call != null) {
            call.cancel(true);
        }
    }

    private CompletableFuture<Void> clean() {
        cleaned.thenRun(() -> client.acquisitions.remove(this));
        if (mayArrive) {
            client.servers.release(key, false, Permit.CLEANUP_TIME).thenRun(() -> cleaned.complete(null));
        } else {
            cleaned.complete(null);
        }
        return cleaned;
    }
}
