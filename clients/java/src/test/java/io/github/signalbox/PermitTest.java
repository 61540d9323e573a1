package io.github.signalbox;

import static io.github.signalbox.Server.PATIENCE;
import static io.github.signalbox.Server.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.signalbox.SignalboxException.Busy;
import io.github.signalbox.SignalboxException.Lost;
import io.github.signalbox.SignalboxException.Misuse;
import io.github.signalbox.SignalboxException.QueueFull;
import io.github.signalbox.SignalboxException.TimedOut;
import io.github.signalbox.SignalboxException.Unreachable;
import java.io.IOException;
import java.net.ServerSocket;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ForkJoinPool;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Permits from the view of a program, with a server that works, ends, or takes them away. */
class PermitTest {
    private static final Request ONE = Request.of("a").maximum(1);

    private static <T> T next(BlockingQueue<T> queue) throws InterruptedException {
        T next = queue.poll(PATIENCE.toMillis(), TimeUnit.MILLISECONDS);
        assertTrue(next != null, "there is nothing more");
        return next;
    }

    @Test
    void aPermitIsHeldUntilItIsReleased() throws Exception {
        try (Server server = new Server(); Client client = server.client()) {
            Permit first = client.acquire(ONE.label("job \"7\"\n"));
            first.check();
            assertTrue(first.timeLeft().compareTo(Duration.ZERO) > 0);
            assertThrows(Busy.class, () -> client.acquire(ONE));
            assertEquals(Optional.empty(), client.tryAcquire(ONE));
            first.release();
            first.release();
            assertEquals(0, server.sessions());
            assertEquals("released", assertThrows(Lost.class, first::check).reason());
            assertEquals(Duration.ZERO, first.timeLeft());
            first.close();
            try (Permit second = client.tryAcquire(ONE).orElseThrow()) {
                assertTrue(second.fence() > first.fence());
            }
            assertEquals(0, server.sessions());
        }
    }

    @Test
    void failuresAreDistinct() throws Exception {
        try (Server server = new Server(); Client client = server.client()) {
            Permit held = client.acquire(ONE);
            assertThrows(TimedOut.class, () -> client.acquire(ONE.waitUpTo(Duration.ofNanos(1))));
            assertThrows(QueueFull.class, () -> client.acquire(ONE.waitUpTo(Duration.ofHours(1)).queueMax(0)));
            assertThrows(Misuse.class, () -> client.acquire("a", Duration.ZERO));
            assertThrows(Misuse.class, () -> client.acquire(ONE.resources(2)));
            assertThrows(Misuse.class, () -> client.acquire(ONE.also("a").maximum(1)));
            assertThrows(Misuse.class, () -> client.acquire(ONE.label("x".repeat(256))));
            // A server creates no name with slots, whatever the request says.
            Misuse undeclared = assertThrows(Misuse.class, () -> client.acquire(Request.of("port").maximum(4).slot(3)));
            assertTrue(undeclared.getMessage().contains("declare --slots"), undeclared.getMessage());
            try (Client elsewhere = Client.builder().url(server.url + "/elsewhere").build()) {
                String message = assertThrows(Misuse.class, () -> elsewhere.acquire(ONE)).getMessage();
                assertTrue(message.contains("/elsewhere"), message);
            }
            server.command("declare", "paused", "--capacity", "1");
            server.command("pause", "paused");
            assertEquals("paused", assertThrows(Busy.class, () -> client.acquire("paused", Duration.ZERO)).code());
            held.release();
        }
    }

    /** No server is asked. */
    @Test
    void whatNoServerAcceptsIsRefusedByTheClient() {
        try (Client client = new Client()) {
            List<Executable> wrong = List.of(
                    () -> ONE.ttl(Duration.ofMillis(999)), () -> ONE.waitUpTo(Duration.ofNanos(-1)),
                    () -> ONE.ttl(Duration.ofSeconds(Long.MIN_VALUE)), () -> ONE.maximum(0), () -> ONE.resources(0),
                    () -> ONE.slot(-1), () -> ONE.queueMax(-1), () -> ONE.also("a"), () -> ONE.label("x".repeat(256)),
                    () -> Request.of("\ud800"), () -> Request.of(""), () -> Request.of("x".repeat(65_536)),
                    () -> client.start(ONE.resources(2)), () -> client.start(ONE.slot(1).resources(2)),
                    () -> client.acquireShared(ONE), () -> client.acquireShared(Request.of("a").also("b")),
                    () -> client.share(Request.of("a").maximum(2), () -> Optional.of("found"), permit -> "made"),
                    () -> Client.builder().unreachableAfter(Duration.ofSeconds(-1)), () -> Client.builder().url());
            wrong.forEach(use -> assertEquals("", assertThrows(Misuse.class, use).code()));

            Client.Work<String, RuntimeException> work = permit -> "made";
            Map<String, Executable> nulls = Map.ofEntries(
                    Map.entry("name", () -> Request.of((String) null)), Map.entry("ttl", () -> ONE.ttl(null)),
                    Map.entry("waitUpTo", () -> ONE.waitUpTo(null)), Map.entry("label", () -> ONE.label(null)),
                    Map.entry("request", () -> client.acquire(null)), Map.entry("work", () -> client.call(ONE, null)),
                    Map.entry("lookup", () -> client.share(Request.of("a"), null, work)),
                    Map.entry("time", () -> Client.builder().unreachableAfter(null)),
                    Map.entry("url", () -> Client.builder().url((String) null)));
            nulls.forEach((parameter, use) ->
                    assertEquals(parameter, assertThrows(NullPointerException.class, use).getMessage()));
        }
    }

    @Test
    void aWaitingAcquireIsServed() throws Exception {
        BlockingQueue<Event> events = new LinkedBlockingQueue<>();
        try (Server server = new Server();
                Client client = Client.builder().url(server.url).onEvent(events::add).build();
                Permit first = server.client().acquire(ONE)) {
            // Requests of a lease of 4 s wait for a quarter of it, so the first answer comes soon.
            CompletableFuture<Permit> second =
                    client.acquireAsync(ONE.waitUpTo(Duration.ofSeconds(Long.MAX_VALUE)).ttl(Duration.ofSeconds(4)));
            Event waiting = next(events);
            assertEquals(Event.Kind.WAITING, waiting.kind());
            assertEquals(1, waiting.position());
            first.release();
            second.get(PATIENCE.toMillis(), TimeUnit.MILLISECONDS).release();
            eventually("it is released", () -> next(events).kind() == Event.Kind.RELEASED);
        }
    }

    @Test
    void severalNamesAreAllGrantedOrNone() throws Exception {
        try (Server server = new Server(); Client client = server.client()) {
            server.command("declare", "gpu", "--capacity", "4", "--slots");
            byte[] binary = {'a', (byte) 0xff, 0};
            Request request = Request.of(binary).maximum(1).also("gpu").resources(2);
            try (Permit permit = client.acquire(request)) {
                assertEquals(List.of(), permit.slots());
                assertEquals(2, permit.slots("gpu").size());
                assertEquals(List.of(), permit.slots("missing"));
                assertThrows(Busy.class, () -> client.acquire(request));
                client.acquire(Request.of("gpu").slot(3)).release();
                client.acquire(Request.of("a\ufffd\u0000").maximum(1)).release(); // Another name.
            }
            assertEquals(0, server.sessions());
        }
    }

    @Test
    void workIsFollowedByARelease() throws Exception {
        try (Server server = new Server(); Client client = server.client()) {
            assertEquals(7, client.<Integer, RuntimeException>call(ONE, permit -> 7));
            IOException failure = new IOException("of the work");
            assertSame(failure, assertThrows(IOException.class, () -> client.run(ONE, permit -> {
                throw failure;
            })));
            assertEquals(0, server.sessions());

            // A loss that the program does not know of is reported at the end, also if the work fails.
            Client.VoidWork<Exception> losing = permit -> {
                server.command("revoke", "--grant", Long.toString(permit.fence()), "--grace", "0");
                eventually("it is lost", () -> permit.timeLeft().isZero());
            };
            assertEquals("revoked", assertThrows(Lost.class, () -> client.run(ONE, losing)).reason());
            Exception beside = assertThrows(IOException.class, () -> client.run(ONE, permit -> {
                losing.run(permit);
                throw failure;
            }));
            assertEquals(Lost.class, beside.getSuppressed()[0].getClass());
            // A loss that it knows of is not.
            client.run(ONE, permit -> {
                losing.run(permit);
                assertThrows(Lost.class, permit::check);
            });
        }
    }

    @Test
    void aLeaseIsRenewedWhileTheProgramBlocksAllOfItsThreads() throws Exception {
        CountDownLatch end = new CountDownLatch(1);
        for (int i = 0; i < ForkJoinPool.getCommonPoolParallelism(); i++) {
            ForkJoinPool.commonPool().submit(() -> {
                end.await();
                return null;
            });
        }
        try (Server server = new Server();
                Client client = Client.builder().url(server.url).onEvent(event -> {
                    try {
                        end.await();
                    } catch (InterruptedException e) {
                        throw new IllegalStateException(e);
                    }
                }).build()) {
            CompletableFuture<Permit> acquire = client.acquireAsync(ONE.ttl(Duration.ofSeconds(20)));
            // Not on this thread, which might have to call it now, or while it waits for the future.
            new Thread(() -> acquire.thenAccept(permit -> {
                try {
                    end.await();
                } catch (InterruptedException e) {
                    throw new IllegalStateException(e);
                }
            })).start();
            eventually("it is held", () -> acquire.getNow(null) != null);
            Permit permit = acquire.getNow(null);
            AtomicReference<Duration> last = new AtomicReference<>(permit.timeLeft());
            eventually("there is more time", () -> permit.timeLeft().compareTo(last.getAndSet(permit.timeLeft())) > 0);
            end.countDown();
        }
    }

    @Test
    void aRevocationIsToldAndHasAGracePeriod() throws Exception {
        BlockingQueue<Event> events = new LinkedBlockingQueue<>();
        BlockingQueue<Duration> graces = new LinkedBlockingQueue<>();
        BlockingQueue<String> reasons = new LinkedBlockingQueue<>();
        try (Server server = new Server();
                Client client = Client.builder().url(server.url).onEvent(events::add).build()) {
            Permit permit = client.acquire(ONE);
            permit.onRevoking(graces::add);
            permit.onRevoking(grace -> permit.onRevoking(graces::add));
            permit.onLost(reasons::add);
            server.command("revoke", "--grant", Long.toString(permit.fence()), "--grace", "2");
            for (int i = 0; i < 2; i++) {
                Duration grace = next(graces);
                assertTrue(grace.compareTo(Duration.ofSeconds(2)) <= 0, grace.toString());
            }
            assertEquals("revoked", next(reasons));
            permit.onLost(reasons::add);
            assertEquals("revoked", next(reasons));
            assertEquals("revoked", assertThrows(Lost.class, permit::check).reason());
            permit.release();
            permit.close();
            for (Event.Kind kind : List.of(Event.Kind.ACQUIRED, Event.Kind.REVOKING, Event.Kind.LOST)) {
                assertEquals(kind, next(events).kind());
            }

            // The server may have the lost one for longer than its holder believes.
            Permit other = client.acquire(ONE.waitUpTo(PATIENCE));
            server.command("revoke", "--grant", Long.toString(other.fence()), "--grace", "1h");
            other.onRevoking(graces::add);
            next(graces);
            other.check();
            other.close();
            assertEquals(0, server.holders("a"));
        }
    }

    /**
     * Each answered request was sent before the end of the server, so no permit may be valid for longer than a lease less its
     * margin after that.
     */
    @ParameterizedTest
    @ValueSource(strings = {"KILL", "STOP"})
    void aDeadServerLosesPermitsInTime(String signal) throws Exception {
        try (Server server = new Server();
                Client client = Client.builder().url(server.url).unreachableAfter(Duration.ofMillis(100)).build()) {
            Duration ttl = Duration.ofSeconds(5);
            Permit permit = client.acquire(ONE.ttl(ttl));
            AtomicReference<String> lost = new AtomicReference<>();
            permit.onLost(lost::set);
            server.signal(signal);
            Thread.sleep(100); // The signal arrives soon; later only makes the test less sharp.
            long end = System.nanoTime() + ttl.toNanos() * 96 / 100;
            for (long read = System.nanoTime(); !permit.timeLeft().isZero(); read = System.nanoTime()) {
                assertTrue(read <= end, "the permit is valid after the end of its lease");
            }
            assertEquals("unreachable", assertThrows(Lost.class, permit::check).reason());
            eventually("the listener is called", () -> lost.get() != null);
            assertEquals("unreachable", lost.get());
            assertThrows(Unreachable.class, () -> client.acquire(ONE));
        }
    }

    @Test
    void aReleaseWithoutAServerIsBoundedAndHeedsNoInterrupt() throws Exception {
        try (Server server = new Server(); Client client = server.client()) {
            Permit permit = client.acquire(ONE.ttl(Duration.ofHours(1)));
            server.signal("STOP");
            Thread.currentThread().interrupt();
            permit.release();
            assertTrue(Thread.interrupted());
            server.signal("CONT");
            eventually("it is released", () -> server.holders("a") == 0);
        }
    }

    @Test
    void aClientKeepsItsPermitOverARestart(@TempDir Path directory) throws Exception {
        String port;
        try (ServerSocket free = new ServerSocket(0)) {
            port = Integer.toString(free.getLocalPort());
        }
        String[] options = {"--data-dir", directory.toString(), "--http-port", port};
        AtomicInteger renewals = new AtomicInteger();
        try (Server first = new Server(options);
                Client client = Client.builder().url(first.url).onEvent(event -> {
                    if (event.kind() == Event.Kind.RENEWED) {
                        renewals.incrementAndGet();
                    }
                }).build();
                Permit permit = client.acquire(ONE.ttl(Duration.ofSeconds(20)))) {
            first.close();
            int before = renewals.get();
            try (Server second = new Server(options)) {
                eventually("it is renewed", () -> renewals.get() > before);
                permit.check();
                assertEquals(1, second.holders("a"));
                permit.release();
                assertEquals(0, second.holders("a"));
            }
        }
    }

    /** The reason alone would not tell the program's author that a lease in memory has ended with the server. */
    @Test
    void aRestartWithoutADataDirectoryIsNamed() throws Exception {
        String port;
        try (ServerSocket free = new ServerSocket(0)) {
            port = Integer.toString(free.getLocalPort());
        }
        try (Server first = new Server("--http-port", port); Client client = first.client();
                Permit permit = client.acquire(ONE.ttl(Duration.ofHours(1)))) {
            first.close();
            try (Server second = new Server("--http-port", port)) {
                eventually("it is lost", () -> permit.timeLeft().isZero());
                Lost lost = assertThrows(Lost.class, permit::check);
                assertEquals("expired", lost.reason());
                assertTrue(lost.getMessage().contains("restart"), lost.getMessage());
                assertEquals(0, second.holders("a"));
            }
        }
    }

    @Test
    void closingTheClientEndsEverything() throws Exception {
        try (Server server = new Server()) {
            Client client = server.client();
            Permit held = client.acquire(ONE);
            CompletableFuture<Permit> waiting = client.acquireAsync(ONE.waitUpTo(Duration.ofHours(1)));
            eventually("it waits", () -> server.waiters("a") == 1);
            client.close();
            assertEquals(0, server.sessions());
            assertThrows(Lost.class, held::check);
            eventually("it fails", waiting::isCompletedExceptionally);
            assertThrows(Misuse.class, () -> client.acquire(ONE));
            client.close();
        }
    }

    @Test
    void ofThoseThatNeedAResultAtOnceOneMakesIt() throws Exception {
        try (Server server = new Server(); Client client = server.client()) {
            AtomicReference<String> cache = new AtomicReference<>();
            AtomicInteger made = new AtomicInteger();
            CountDownLatch fail = new CountDownLatch(1);
            CountDownLatch finish = new CountDownLatch(1);
            Client.Lookup<String, Exception> lookup = () -> Optional.ofNullable(cache.get());
            Client.Work<String, Exception> work = permit -> {
                if (made.incrementAndGet() == 1) {
                    fail.await();
                    throw new IOException("of the work");
                }
                finish.await();
                cache.set("made");
                return "made";
            };
            Request request = Request.of("page").waitUpTo(Duration.ofHours(1));
            List<CompletableFuture<String>> all = List.of(0, 1, 2, 3).stream().map(i -> {
                CompletableFuture<String> result = new CompletableFuture<>();
                new Thread(() -> {
                    try {
                        result.complete(client.share(request, lookup, work));
                    } catch (Exception e) {
                        result.complete(e.getMessage());
                    }
                }).start();
                return result;
            }).toList();
            eventually("the others wait", () -> server.waiters("page") == 3);
            assertThrows(TimedOut.class,
                    () -> client.share(Request.of("page").waitUpTo(Duration.ofMillis(1)), lookup, work));
            fail.countDown(); // Another one works.
            eventually("the next one works", () -> made.get() == 2 && server.waiters("page") == 2);
            finish.countDown();
            List<String> results = all.stream().map(CompletableFuture::join).sorted().toList();
            assertEquals(List.of("made", "made", "made", "of the work"), results);
            assertEquals(2, made.get());
            assertEquals("made", client.share(request, lookup, work));
            eventually("nothing is left", () -> server.sessions() == 0);
            try (Permit other = client.acquire(ONE)) {
                assertThrows(Misuse.class, other::releaseDone);
                other.check();
            }
        }
    }
}
