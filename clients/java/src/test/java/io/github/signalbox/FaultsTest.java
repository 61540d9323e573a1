package io.github.signalbox;

import static io.github.signalbox.Server.PATIENCE;
import static io.github.signalbox.Server.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpServer;
import io.github.signalbox.SignalboxException.Busy;
import io.github.signalbox.SignalboxException.Misuse;
import io.github.signalbox.SignalboxException.NotPermitted;
import io.github.signalbox.SignalboxException.Unreachable;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.time.Duration;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Networks that fail, acquires that are given up, tokens, TLS and configurations. */
class FaultsTest {
    private static final Request ONE = Request.of("a").maximum(1);

    private static Client client(HttpServer front) {
        return Client.builder().url(Server.url(front)).build();
    }

    /** Wherever the request was, even if it arrives after its release. */
    @ParameterizedTest
    @ValueSource(strings = {"not sent on", "executed", "late"})
    void aCanceledAcquireLeavesNothingBehind(String where) throws Exception {
        AtomicReference<Thread> caller = new AtomicReference<>();
        CountDownLatch returned = new CountDownLatch(1);
        CountDownLatch arrived = new CountDownLatch(1);
        try (Server server = new Server()) {
            HttpServer front = server.front((path, exchange) -> {
                if (!path.equals("acquire")) {
                    exchange.pass().give();
                    return;
                }
                if (where.equals("executed")) {
                    exchange.pass();
                }
                Thread waiting = caller.getAndSet(null);
                if (waiting != null) { // A request without an answer is repeated.
                    waiting.interrupt();
                }
                if (where.equals("late")) {
                    returned.await();
                    exchange.pass();
                }
                arrived.countDown();
            });
            try (Client client = client(front)) {
                caller.set(Thread.currentThread());
                assertThrows(InterruptedException.class, () -> client.acquire(ONE.waitUpTo(Duration.ofHours(1))));
                returned.countDown();
                assertTrue(arrived.await(PATIENCE.toMillis(), TimeUnit.MILLISECONDS));
                assertEquals(0, server.sessions());
            }
            front.stop(0);
        }
    }

    @Test
    void anAcquireThatIsGivenUpLeavesTheQueue() throws Exception {
        try (Server server = new Server(); Client client = server.client(); Permit held = client.acquire(ONE)) {
            Request waiting = ONE.waitUpTo(Duration.ofHours(1));
            CompletableFuture<Permit> canceled = client.acquireAsync(waiting);
            eventually("it waits", () -> server.waiters("a") == 1);
            assertTrue(canceled.cancel(true));
            eventually("it has left the queue", () -> server.sessions() == 1);
            ExecutionException timedOut = assertThrows(ExecutionException.class, () ->
                    client.acquireAsync(waiting).orTimeout(500, TimeUnit.MILLISECONDS).get());
            assertEquals(TimeoutException.class, timedOut.getCause().getClass());
            eventually("it has left the queue", () -> server.sessions() == 1);
            held.check();
        }
    }

    @Test
    void closingTheClientWaitsForWhatIsReleasedAndGivenUpAlready() throws Exception {
        try (Server server = new Server(); Client holding = server.client(); Permit held = holding.acquire(ONE)) {
            HttpServer front = server.front((path, exchange) -> {
                if (path.equals("release")) {
                    Thread.sleep(500);
                }
                exchange.pass().give();
            });
            try (Client client = client(front)) {
                CompletableFuture<Permit> canceled = client.acquireAsync(ONE.waitUpTo(Duration.ofHours(1)));
                eventually("it waits", () -> server.waiters("a") == 1);
                client.acquire(Request.of("b").maximum(1)).releaseAsync();
                canceled.cancel(true);
            }
            assertEquals(1, server.sessions());
            held.check();
            front.stop(0);
        }
    }

    @Test
    void requestsWhoseAnswerIsLostAreRepeated() throws Exception {
        AtomicInteger requests = new AtomicInteger();
        try (Server server = new Server()) {
            HttpServer front = server.front((path, exchange) -> {
                int number = requests.incrementAndGet();
                if (number % 3 == 1) {
                    return; // Not executed.
                }
                exchange.pass();
                if (number % 3 == 0) {
                    exchange.give();
                }
            });
            try (Client client = client(front)) {
                for (int i = 0; i < 3; i++) {
                    client.run(ONE.ttl(Duration.ofSeconds(20)), Permit::check);
                    assertEquals(0, server.sessions());
                }
            }
            front.stop(0);
        }
    }

    /** The validity counts from before the request was sent. */
    @Test
    void aLateAnswerLeavesLessTime() throws Exception {
        try (Server server = new Server()) {
            HttpServer front = server.front((path, exchange) -> {
                exchange.pass();
                if (path.equals("acquire")) {
                    Thread.sleep(1000);
                }
                if (!path.equals("renew")) {
                    exchange.give();
                }
            });
            try (Client client = client(front); Permit permit = client.acquire(ONE.ttl(Duration.ofSeconds(8)))) {
                Duration left = permit.timeLeft();
                assertTrue(left.compareTo(Duration.ofMillis(8000 * 96 / 100 - 1000)) <= 0, left.toString());
            }
            front.stop(0);
        }
    }

    /** Thus a permit that a slow server has granted can be renewed even if the server stops again soon. */
    @Test
    void aPermitThatIsGrantedLateIsRenewedAtOnce() throws Exception {
        Duration ttl = Duration.ofSeconds(4);
        BlockingQueue<String> renewals = new LinkedBlockingQueue<>();
        try (Server server = new Server()) {
            HttpServer front = server.front((path, exchange) -> {
                exchange.pass();
                if (path.equals("acquire")) {
                    Thread.sleep(ttl.dividedBy(4).toMillis());
                } else if (path.equals("renew")) {
                    renewals.add(exchange.body);
                }
                exchange.give();
            });
            try (Client client = client(front); Permit permit = client.acquire(ONE.ttl(ttl))) {
                String first = renewals.poll(PATIENCE.toMillis(), TimeUnit.MILLISECONDS);
                assertFalse(first.contains("poll_ms"), first);
                String second = renewals.poll(PATIENCE.toMillis(), TimeUnit.MILLISECONDS);
                assertTrue(second.contains("poll_ms"), second);
                permit.check();
            }
            front.stop(0);
        }
    }

    private static String failure(Class<? extends SignalboxException> kind, String... urls) {
        try (Client client = Client.builder().url(urls).unreachableAfter(Duration.ZERO).build()) {
            String message = assertThrows(kind, () -> client.acquire(ONE)).getMessage();
            assertTrue(message.contains(urls[0]), message);
            assertFalse(message.contains("Exception"), message);
            return message.replace(urls[0], "");
        }
    }

    @Test
    void aRefusedConnectionAndAnUnknownHostAreToldApart() {
        String refused = failure(Unreachable.class, "http://127.0.0.1:1");
        assertNotEquals(refused, failure(Unreachable.class, "http://no-such-host.invalid:1"));
    }

    /** Nothing is tried again, and no release is sent: there is nothing that could have the request. */
    @Test
    void aPortWithoutHttpIsMisuseAtOnce() throws Exception {
        try (Server server = new Server()) {
            String counter = "http://" + server.counter;
            String tls = server.url.replace("http:", "https:");
            for (String[] urls : List.of(new String[] {counter}, new String[] {tls}, new String[] {counter, tls})) {
                try (Client client = Client.builder().url(urls).unreachableAfter(Duration.ofHours(1)).build()) {
                    assertThrows(Misuse.class, () -> client.acquire(ONE.waitUpTo(Duration.ofHours(1))));
                }
            }
            failure(Misuse.class, counter);
            try (Client client = Client.builder().url(counter, server.url).build()) {
                client.run(ONE, Permit::check);
            }
        }
    }

    /** A server without room for requests that wait for a change answers those that do not. */
    @Test
    void permitsAreKeptWithoutRequestsThatWait() throws Exception {
        AtomicInteger renewals = new AtomicInteger();
        try (Server server = new Server()) {
            HttpServer front = server.front((path, exchange) -> {
                if (exchange.body.contains("poll_ms")) {
                    exchange.give(503, "{\"error\": {\"code\": \"busy\", \"message\": \"no room\"}}");
                } else {
                    exchange.pass().give();
                    renewals.addAndGet(path.equals("renew") ? 1 : 0);
                }
            });
            try (Client client = client(front); Permit permit = client.acquire(ONE.ttl(Duration.ofSeconds(10)))) {
                eventually("it is renewed", () -> renewals.get() > 3);
                permit.check();
            }
            front.stop(0);
        }
    }

    @Test
    void theServerThatAnswersIsFoundAmongSeveral() throws Exception {
        AtomicBoolean isFailing = new AtomicBoolean();
        try (Server server = new Server(); ServerSocket silent = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
            HttpServer standby = server.front((path, exchange) ->
                    exchange.give(503, "{\"error\": {\"code\": \"not_serving\", \"message\": \"another node leads\"}}"));
            HttpServer front = server.front((path, exchange) -> {
                if (!isFailing.get()) {
                    exchange.pass().give();
                }
            });
            try (Client client = Client.builder().url("http://127.0.0.1:" + silent.getLocalPort(), "http://127.0.0.1:1",
                    Server.url(standby), Server.url(front), server.url).build()) {
                Permit permit = client.acquire(ONE.ttl(Duration.ofSeconds(10)));
                isFailing.set(true);
                assertTrue(client.tryAcquire(ONE).isEmpty());
                permit.close();
                assertEquals(0, server.holders("a"));
            }
            standby.stop(0);
            front.stop(0);
        }
    }

    @Test
    void aTokenIsReadAgainWhenItIsRefused(@TempDir Path folder) throws Exception {
        try (Server server = Server.guarded(folder, "networks = [\"127.0.0.0/8 none\"]")) {
            Path file = folder.resolve("token");
            Files.writeString(file, server.token(folder, "create", "first", "--rights", "acquire"));
            AtomicInteger renewals = new AtomicInteger();
            try (Client client = Client.builder().url(server.url).tokenFile(file.toString()).onEvent(event ->
                    renewals.addAndGet(event.kind() == Event.Kind.RENEWED ? 1 : 0)).build()) {
                AtomicReference<Permit> held = new AtomicReference<>();
                eventually("the server knows the token", () -> {
                    try {
                        held.set(client.acquire(ONE.ttl(Duration.ofSeconds(8))));
                        return true;
                    } catch (NotPermitted e) {
                        return false;
                    }
                });
                Files.writeString(file, server.token(folder, "create", "second", "--rights", "acquire"));
                server.token(folder, "revoke", "first");
                int before = renewals.get();
                eventually("it is renewed", () -> renewals.get() > before + 2);
                held.get().check();

                server.token(folder, "revoke", "second");
                AtomicReference<String> reason = new AtomicReference<>();
                held.get().onLost(reason::set);
                eventually("it is lost", () -> reason.get() != null);
                assertEquals("not_permitted", reason.get());
                assertThrows(NotPermitted.class, () -> client.acquire(ONE));
                assertThrows(NotPermitted.class, () -> server.client().acquire(ONE));
            }
        }
    }

    /** Makes an authority and its certificate for an address as one, and returns the file. */
    private static Path certify(Path folder, String address) throws Exception {
        Path store = Files.createDirectories(folder).resolve("store.p12");
        int status = new ProcessBuilder(System.getProperty("java.home") + "/bin/keytool", "-genkeypair", "-alias", "test",
                "-keyalg", "RSA", "-dname", "CN=test", "-ext", "san=ip:" + address, "-ext", "bc=ca:true", "-storetype", "PKCS12",
                "-keystore", store.toString(), "-storepass", "secret").start().waitFor();
        assertEquals(0, status);
        KeyStore keys = KeyStore.getInstance(store.toFile(), "secret".toCharArray());
        pem(folder.resolve("key.pem"), "PRIVATE KEY", keys.getKey("test", "secret".toCharArray()).getEncoded());
        return pem(folder.resolve("certificate.pem"), "CERTIFICATE", keys.getCertificate("test").getEncoded());
    }

    private static Path pem(Path file, String type, byte[] der) throws IOException {
        String text = Base64.getMimeEncoder(64, new byte[] {'\n'}).encodeToString(der);
        return Files.writeString(file, "-----BEGIN " + type + "-----\n" + text + "\n-----END " + type + "-----\n");
    }

    /** A server with the certificate of a folder. */
    private static Server secured(Path folder, Path authority) throws Exception {
        Path config = Files.writeString(folder.resolve("signalbox.toml"),
                "[tls]\ncert = \"" + authority + "\"\nkey = \"" + folder.resolve("key.pem") + "\"\n");
        return new Server("--config", config.toString());
    }

    @Test
    void theServerIsVerifiedOverTls(@TempDir Path folder) throws Exception {
        Path authority = certify(folder, "127.0.0.1");
        Path misnamed = certify(folder.resolve("misnamed"), "192.0.2.1");
        try (Server server = secured(folder, authority); Server other = secured(folder.resolve("misnamed"), misnamed)) {
            String url = server.url.replace("http:", "https:");
            String otherUrl = other.url.replace("http:", "https:");
            try (Client client = Client.builder().url(url).ca(authority.toString()).build()) {
                client.run(ONE, Permit::check);
            }
            for (String[] urls : List.of(new String[] {url}, new String[] {otherUrl}, new String[] {url, otherUrl})) {
                try (Client client = Client.builder().url(urls).ca(misnamed.toString()).unreachableAfter(Duration.ofHours(1)).build()) {
                    assertThrows(Unreachable.class, () -> client.acquire(ONE));
                }
            }
        }
    }

    @Test
    void aServerWithoutRoomIsNotUnreachable(@TempDir Path folder) throws Exception {
        Path config = Files.writeString(folder.resolve("signalbox.toml"), "[session]\nmax_sessions = 1\n");
        try (Server server = new Server("--config", config.toString()); Client holding = server.client();
                Permit held = holding.acquire(ONE)) {
            for (String[] urls : List.of(new String[] {server.url}, new String[] {"http://127.0.0.1:1", server.url})) {
                try (Client client = Client.builder().url(urls).unreachableAfter(Duration.ofSeconds(1)).build()) {
                    Busy full = assertThrows(Busy.class, () -> client.acquire(Request.of("b").maximum(1)));
                    assertEquals("limit_reached", full.code());
                    assertTrue(full.getMessage().contains("max_sessions"), full.getMessage());
                }
            }
            held.check();
        }
    }

    @Test
    void theConfigurationIsChecked(@TempDir Path folder) throws Exception {
        String empty = Files.writeString(folder.resolve("empty"), "").toString();
        List<Client.Builder> wrong = List.of(
                Client.builder().url("ftp://lock.example.org"), Client.builder().url("http://"),
                Client.builder().url("http://127.0.0.1:65536"), Client.builder().url("http://user:secret@lock.example.org"),
                Client.builder().url("http://192.0.2.1:11217").token("secret"), Client.builder().tokenFile(empty),
                Client.builder().tokenFile("/does/not/exist"), Client.builder().ca(empty),
                Client.builder().ca("/does/not/exist"));
        for (Client.Builder builder : wrong) {
            assertFalse(assertThrows(Misuse.class, builder::build).getMessage().contains("secret"));
        }
        for (String url : List.of("lock.example.org:11217", "127.0.0.1:18117", "http://lock.example.org:x", "http://a b")) {
            String message = assertThrows(Misuse.class, () -> Client.builder().url(url).build()).getMessage();
            assertTrue(message.contains(url), message);
        }
        for (String variable : List.of("http://127.0.0.1:11217,", ",", "http://127.0.0.1:1,,http://127.0.0.1:2")) {
            assertThrows(Misuse.class, () -> Configuration.of(Client.builder(), Map.of("SIGNALBOX_URL", variable)));
        }
        Client.builder().url("HTTP://192.0.2.1:11217").token("secret").tokenOverPlain().build();
        Client.builder().unreachableAfter(Duration.ofSeconds(Long.MAX_VALUE)).build();
        Client.builder().url("https://192.0.2.1/x/", "http://[::1]:11217", "http://localhost").token("secret").build();
    }

    private static String token(Client.Builder builder, String... environment) {
        Map<String, String> variables = new HashMap<>();
        for (int i = 0; i < environment.length; i += 2) {
            variables.put(environment[i], environment[i + 1]);
        }
        return Configuration.of(builder, variables).token().read();
    }

    @Test
    void tokensAreCheckedAndWhatTheProgramGivesWins(@TempDir Path folder) throws Exception {
        String file = Files.writeString(folder.resolve("token"), "in the file\n").toString();
        String lines = Files.writeString(folder.resolve("lines"), "secret\nlines\n").toString();
        for (Client.Builder builder : List.of(Client.builder().token("secret\nlines"), Client.builder().token(" \n"),
                Client.builder().tokenFile(lines), Client.builder().token("secret").tokenFile(file))) {
            assertFalse(assertThrows(Misuse.class, builder::build).getMessage().contains("secret"));
        }
        assertEquals("given", token(Client.builder().token(" given\r\n"), "SIGNALBOX_TOKEN_FILE", file));
        assertEquals("in the file", token(Client.builder().tokenFile(file), "SIGNALBOX_TOKEN", "variable"));
        assertEquals("in the file", token(Client.builder(), "SIGNALBOX_TOKEN", "variable", "SIGNALBOX_TOKEN_FILE", file));
        assertEquals("variable", token(Client.builder(), "SIGNALBOX_TOKEN", "variable", "SIGNALBOX_TOKEN_FILE", ""));
        assertEquals("", token(Client.builder()));
    }
}
