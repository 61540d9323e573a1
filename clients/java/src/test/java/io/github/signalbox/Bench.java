package io.github.signalbox;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.SynchronousQueue;

/** Measures what the client costs, over loopback. */
final class Bench {
    private static final HttpClient HTTP = HttpClient.newHttpClient();
    private static final Request ONE = Request.of("a").maximum(1);

    private Bench() {}

    public static void main(String[] arguments) throws Exception {
        Path folder = Files.createTempDirectory("signalbox");
        try (Server server = Server.guarded(folder, "")) {
            String token = server.token(folder, "create", "all", "--rights", "all");
            try (Client client = Client.builder().url(server.url).token(token).build()) {
                Server.eventually("the server knows the token", () -> revoke(server, token, "1") == 404);
                measure("one request without the client", 5000, () -> {
                    long begun = System.nanoTime();
                    server.get("/healthz");
                    return System.nanoTime() - begun;
                });
                measure("acquire and release", 5000, () -> {
                    long begun = System.nanoTime();
                    client.acquire(ONE).release();
                    return System.nanoTime() - begun;
                });
                measure("revocation to listener", 300, () -> revocation(server, client, token));
                try (Permit permit = client.acquire(ONE)) {
                    measure("check", 100_000, () -> {
                        long begun = System.nanoTime();
                        permit.check();
                        return System.nanoTime() - begun;
                    });
                }
                memory(server, client);
            }
        }
    }

    private static void measure(String what, int times, Callable<Long> step) throws Exception {
        for (int i = 0; i < times / 2; i++) {
            step.call();
        }
        long[] nanos = new long[times];
        for (int i = 0; i < times; i++) {
            nanos[i] = step.call();
        }
        double perSecond = 1e9 * times / Arrays.stream(nanos).sum();
        Arrays.sort(nanos);
        System.out.printf("%s: median %.3f ms, 99th percentile %.3f ms, %.0f/s%n",
                what, nanos[times / 2] / 1e6, nanos[times * 99 / 100] / 1e6, perSecond);
    }

    private static int revoke(Server server, String token, String grant) throws Exception {
        String body = "{\"grant\": \"" + grant + "\", \"grace_ms\": 10000}";
        return HTTP.send(HttpRequest.newBuilder(URI.create(server.url + "/api/v1/revoke"))
                .header("Content-Type", "application/json").header("Authorization", "Bearer " + token)
                .POST(HttpRequest.BodyPublishers.ofString(body)).build(),
                HttpResponse.BodyHandlers.discarding()).statusCode();
    }

    /** From the request for a revocation until the listener is called. */
    private static long revocation(Server server, Client client, String token) throws Exception {
        try (Permit permit = client.acquire(ONE)) {
            SynchronousQueue<Long> told = new SynchronousQueue<>();
            permit.onRevoking(grace -> {
                try {
                    told.put(System.nanoTime());
                } catch (InterruptedException e) {
                    throw new IllegalStateException(e);
                }
            });
            Server.eventually("the renewal waits", () -> parked(server) == 1);
            long begun = System.nanoTime();
            revoke(server, token, Long.toString(permit.fence()));
            return told.take() - begun;
        }
    }

    private static int parked(Server server) throws Exception {
        return server.get("/metrics").lines().filter(line -> line.startsWith("signalbox_http_parked_requests "))
                .mapToInt(line -> Integer.parseInt(line.split(" ")[1])).sum();
    }

    private static void memory(Server server, Client client) throws Exception {
        long before = used();
        List<Permit> permits = new ArrayList<>();
        for (int i = 0; i < 1000; i++) {
            permits.add(client.acquire(Request.of("memory/" + i).maximum(1)));
        }
        Server.eventually("all renewals wait", () -> parked(server) == permits.size());
        System.out.printf("each of %d permits takes %.1f KB; %d threads%n",
                permits.size(), (used() - before) / 1000.0 / permits.size(), Thread.activeCount());
    }

    private static long used() throws InterruptedException {
        Runtime runtime = Runtime.getRuntime();
        for (int i = 0; i < 3; i++) {
            System.gc();
            Thread.sleep(100);
        }
        return runtime.totalMemory() - runtime.freeMemory();
    }
}
