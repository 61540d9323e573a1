package io.github.signalbox;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;

/** Runs the client for the conformance suite (conformance/README.md): it passes commands on, and reports what the client says. */
final class Driver {
    private static final Client CLIENT = new Client();
    private static final Map<String, CompletableFuture<Permit>> ACQUIRES = new HashMap<>();
    private static final List<Permit> KEPT = new ArrayList<>();

    private Driver() {}

    public static void main(String[] arguments) throws IOException, InterruptedException {
        warmUp();
        say(Map.of("driver", "java", "capabilities", List.of("cancel", "defaults", "pairs", "push", "renew", "share", "tls", "token")));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = lines.readLine()) != null; ) {
            Map<String, Object> command = Json.object(line);
            if (command.get("do").equals("exit")) {
                return;
            }
            obey(command, (String) command.get("permit"));
        }
    }

    /** Loads the classes of the client, which takes longer on a busy machine than the shortest lease of the suite. */
    private static void warmUp() throws InterruptedException {
        try {
            CLIENT.run(Request.of("warm-up").maximum(1000), permit -> {
                permit.check();
                Thread.sleep(50); // Until it is renewed.
            });
        } catch (SignalboxException e) {
            // The first command says more.
        }
    }

    private static synchronized void say(Map<String, Object> line) {
        System.out.println(Json.write(line));
        System.out.flush();
    }

    private static void obey(Map<String, Object> command, String name)
            throws IOException, InterruptedException {
        Map<String, Object> answer = new LinkedHashMap<>();
        switch ((String) command.get("do")) {
            case "acquire" -> {
                acquire(command, name);
                return;
            }
            case "pairs" -> answer.put("times_us", pairs(command));
            case "cancel" -> ACQUIRES.get(name).cancel(true);
            case "check" -> {
                if (command.get("block_ms") != null) {
                    block(number(command, "block_ms"));
                }
                if (Boolean.TRUE.equals(command.get("stop"))) {
                    stop();
                }
                answer.putAll(belief(permit(name)));
            }
            case "release" -> {
                if (permit(name) != null) {
                    permit(name).release(Boolean.TRUE.equals(command.get("done"))).join();
                }
            }
            default -> throw new IllegalArgumentException(command.toString());
        }
        answer.put("id", command.get("id"));
        say(answer);
    }

    private static void block(int ms) {
        for (long end = System.nanoTime() + ms * 1_000_000L; System.nanoTime() < end; ) {
            Thread.onSpinWait();
        }
    }

    /** Stops the process. The signal of another one arrives at some time, so that one ends when it sees the effect. */
    private static void stop() throws IOException, InterruptedException {
        String isStopped = "grep -q '^State:.T' /proc/$PPID/status";
        String kill = "kill -STOP $PPID; for i in $(seq 300); do " + isStopped + " && break; sleep 0.01; done";
        new ProcessBuilder("sh", "-c", kill).start().waitFor();
    }

    private static int number(Map<String, Object> from, String key) {
        return ((Number) from.get(key)).intValue();
    }

    private static Permit permit(String name) {
        CompletableFuture<Permit> acquire = ACQUIRES.get(name);
        return acquire.isDone() && !acquire.isCompletedExceptionally() ? acquire.join() : null;
    }

    @SuppressWarnings("unchecked")
    private static List<Map<String, Object>> claims(Map<String, Object> command) {
        return (List<Map<String, Object>>) command.get("claims");
    }

    private static Request request(Map<String, Object> command) {
        boolean isShared = Boolean.TRUE.equals(command.get("share"));
        Request request = null;
        for (Map<String, Object> claim : claims(command)) {
            String wanted = (String) claim.get("name");
            request = request == null ? Request.of(wanted) : request.also(wanted);
            request = isShared || claim.get("maximum") == null ? request : request.maximum(number(claim, "maximum"));
            request = claim.get("resources") == null ? request : request.resources(number(claim, "resources"));
        }
        if (command.containsKey("ttl_ms")) {
            request = request.ttl(Duration.ofMillis(number(command, "ttl_ms")));
            request = request.waitUpTo(Duration.ofMillis(number(command, "wait_ms")));
        }
        return request;
    }

    private static List<Long> pairs(Map<String, Object> command) throws InterruptedException {
        Request request = request(command);
        List<Long> times = new ArrayList<>();
        for (int count = number(command, "count"); count > 0; count--) {
            long began = System.nanoTime();
            Permit permit = CLIENT.acquire(request);
            if (Boolean.TRUE.equals(command.get("keep"))) {
                KEPT.add(permit);
            } else {
                permit.release();
            }
            times.add((System.nanoTime() - began) / 1000);
        }
        System.gc();
        return times;
    }

    private static void acquire(Map<String, Object> command, String name) {
        Request request = request(command);
        boolean isShared = Boolean.TRUE.equals(command.get("share"));
        CompletableFuture<Permit> acquire = CLIENT.start(isShared ? request.shared() : request).result;
        ACQUIRES.put(name, acquire);
        acquire.whenComplete((permit, failure) -> {
            Map<String, Object> answer = new LinkedHashMap<>(Map.of("id", command.get("id")));
            if (failure != null) {
                answer.put("failure", failure(failure));
            } else if (permit == null) {
                answer.put("done", true);
            } else {
                permit.onRevoking(grace -> say(Map.of("event", "revoking", "permit", name, "grace_ms", grace.toMillis())));
                permit.onLost(reason -> say(Map.of("event", "lost", "permit", name, "reason", reason)));
                answer.putAll(belief(permit));
                answer.put("fence", Long.toUnsignedString(permit.fence()));
                answer.put("slots", claims(command).stream().map(claim -> permit.slots((String) claim.get("name")))
                        .filter(slots -> !slots.isEmpty()).toList());
            }
            say(answer);
        });
    }

    private static Map<String, Object> belief(Permit permit) {
        try {
            if (permit != null) {
                permit.check();
                return Map.of("held", true, "left_ms", permit.timeLeft().toMillis());
            }
        } catch (SignalboxException.Lost lost) {
            // It is not held.
        }
        return Map.of("held", false);
    }

    private static String failure(Throwable failure) {
        if (failure instanceof CancellationException) {
            return "canceled";
        }
        Throwable cause = failure instanceof CompletionException ? failure.getCause() : failure;
        return cause.getClass().getSimpleName().replaceAll("(?<=.)([A-Z])", "_$1").toLowerCase();
    }
}
