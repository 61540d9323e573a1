package io.github.signalbox;

import java.net.ConnectException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpConnectTimeoutException;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.channels.UnresolvedAddressException;
import java.nio.charset.StandardCharsets;
import java.security.cert.CertPathBuilderException;
import java.security.cert.CertificateException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLException;

/** Requests to the servers. All of it runs on the client's thread; futures are completed there. */
final class Servers {
    /** How long a server has to answer, beyond the time that a request waits for a change. */
    static final Duration ANSWER_TIME = Duration.ofSeconds(2);

    private static final int UNKNOWN = -1;

    private final List<String> urls;
    private final Token token;
    private final SSLContext tls;
    private final Threads threads;

    private HttpClient http;
    /** The server that has answered last. */
    private int preferred;

    Servers(List<String> urls, Token token, SSLContext tls, Threads threads) {
        this.urls = urls;
        this.token = token;
        this.tls = tls;
        this.threads = threads;
        preferred = urls.size() == 1 ? 0 : UNKNOWN;
        http = connections();
    }

    private HttpClient connections() {
        HttpClient.Builder builder = HttpClient.newBuilder()
                .version(HttpClient.Version.HTTP_1_1)
                .proxy(HttpClient.Builder.NO_PROXY) // Those of the environment are for other traffic.
                .connectTimeout(ANSWER_TIME)
                .executor(threads.others);
        return (tls == null ? builder : builder.sslContext(tls)).build();
    }

    boolean hasToken() {
        return !token.read().isEmpty();
    }

    boolean areSeveral() {
        return urls.size() > 1;
    }

    /**
     * Asks the server that has answered last. If it does not answer, or none has yet, asks all others in parallel
     * without waiting for a change. That a request is executed twice does not matter, since it has the same key.
     *
     * @param poll how long the request may stay without an answer
     * @param patience how long each server has to answer beyond that
     * @return an answer, or {@link Unanswered}; to cancel it ends all attempts
     */
    CompletableFuture<Answer> post(String path, Map<String, Object> body, Duration poll, Duration patience) {
        if (urls.size() == 1) {
            return new Attempt(urls.get(0), path, body, poll, patience);
        }
        return new Race(path, body, poll, patience);
    }

    /**
     * Gives back what a request has or may still get, even if the request arrives later. It is repeated until a server
     * has answered, or this time is over; then it completes all the same.
     *
     * @param isDone whether the work of a single flight is done
     */
    CompletableFuture<Void> release(String key, boolean isDone, Duration bound) {
        Map<String, Object> body = new LinkedHashMap<>(Map.of("key", key));
        if (isDone) {
            body.put("done", true);
        }
        CompletableFuture<Void> released = new CompletableFuture<>();
        release(body, LeaseClock.now() + bound.toNanos(), new Pauses(), released);
        return released;
    }

    private void release(Map<String, Object> body, long end, Pauses pauses, CompletableFuture<Void> released) {
        Duration left = Duration.ofNanos(end - LeaseClock.now());
        if (left.isNegative()) {
            released.complete(null);
            return;
        }
        post("release", body, Duration.ZERO, min(left, ANSWER_TIME)).whenComplete((answer, failure) -> {
            if (failure == null) {
                released.complete(null);
            } else {
                threads.later(pauses.next(ANSWER_TIME, failure), () -> release(body, end, pauses, released));
            }
        });
    }

    private static String portHint(String url) {
        return URI.create(url).getPort() < 0 ? " (the URL has no port; that of signalbox is usually 11217)" : "";
    }

    static Duration min(Duration one, Duration other) {
        return one.compareTo(other) < 0 ? one : other;
    }

    /** One request to one server, or two if the token was replaced. */
    private final class Attempt extends CompletableFuture<Answer> {
        private final String url;
        private final String path;
        private final Map<String, Object> body;
        /** {@code null}: there is an answer, and the connection may have another exchange. */
        private Future<?> exchange;

        Attempt(String url, String path, Map<String, Object> body, Duration poll, Duration patience) {
            this.url = url;
            this.path = path;
            this.body = new LinkedHashMap<>(body);
            if (!poll.isZero()) {
                this.body.put("poll_ms", poll.toMillis());
            }
            HttpClient connections = http;
            Future<?> timer = threads.later(poll.plus(patience), () -> {
                // The others may be broken in the same way, as after the server has changed its address.
                if (completeExceptionally(new Unanswered(url + portHint(url) + ": no answer in time")) && http == connections) {
                    http = connections();
                    token.reload();
                }
            });
            whenComplete((answer, failure) -> {
                timer.cancel(false);
                if (exchange != null) {
                    exchange.cancel(true); // Closes the connection.
                }
            });
            send();
        }

        private void send() {
            String shown = path.equals("release") ? "" : token.read();
            HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(url + "/api/v1/lease/" + path))
                    .header("Content-Type", "application/json")
                    .POST(HttpRequest.BodyPublishers.ofString(Json.write(body)));
            if (!shown.isEmpty()) {
                request.header("Authorization", "Bearer " + shown);
            }
            long sent = LeaseClock.now();
            // The future of the exchange is completed in the common pool, which the program may block. So it is used for
            // failures only, which a timer bounds.
            HttpResponse.BodyHandler<Void> handler = response -> HttpResponse.BodySubscribers.mapping(
                    HttpResponse.BodySubscribers.ofString(StandardCharsets.UTF_8), text -> {
                        threads.client.execute(() -> receive(response, text, sent, shown));
                        return null;
                    });
            CompletableFuture<?> exchange = http.sendAsync(request.build(), handler);
            this.exchange = exchange;
            exchange.whenCompleteAsync((done, failure) -> {
                if (failure != null) {
                    completeExceptionally(new Unanswered(url, failure));
                }
            }, threads.client);
        }

        private void receive(HttpResponse.ResponseInfo response, String text, long sent, String shown) {
            exchange = null;
            int status = response.statusCode();
            Answer answer;
            try {
                answer = new Answer(status, Json.object(text), sent);
            } catch (IllegalArgumentException e) {
                completeExceptionally(new Unanswered(url + ": status " + status
                        + " without JSON; check that this is the HTTP listener of signalbox"));
                return;
            }
            if (status == 408 || status >= 500) {
                String after = response.headers().firstValue("Retry-After").orElse("");
                completeExceptionally(new Unanswered(url, answer, after.matches("\\d{1,9}") ? Long.parseLong(after) : 0));
            } else if (answer.refusesToken() && !isDone() && !token.reload().equals(shown)) {
                send();
            } else {
                complete(answer);
            }
        }
    }

    /** One request to several servers. The first answer counts. */
    private final class Race extends CompletableFuture<Answer> {
        private final String path;
        private final Map<String, Object> body;
        private final Duration patience;
        private final List<Attempt> attempts = new ArrayList<>();
        private int pending;
        private Unanswered failure;

        Race(String path, Map<String, Object> body, Duration poll, Duration patience) {
            this.path = path;
            this.body = body;
            this.patience = patience;
            whenComplete((answer, failure) -> attempts.forEach(attempt -> attempt.cancel(true)));
            int first = preferred;
            if (first == UNKNOWN) {
                startAllBut(UNKNOWN);
            } else {
                start(first, poll, true);
            }
        }

        private void startAllBut(int first) {
            for (int server = 0; server < urls.size(); server++) {
                if (server != first) {
                    start(server, Duration.ZERO, false);
                }
            }
        }

        private void start(int server, Duration poll, boolean isAlone) {
            pending++;
            Attempt attempt = new Attempt(urls.get(server), path, body, poll, patience);
            attempts.add(attempt);
            attempt.whenComplete((answer, failure) -> {
                pending--;
                if (isDone()) {
                    return;
                }
                if (failure == null) {
                    preferred = server;
                    complete(answer);
                    return;
                }
                keep((Unanswered) failure);
                if (isAlone) {
                    preferred = preferred == server ? UNKNOWN : preferred;
                    startAllBut(server);
                } else if (pending == 0) {
                    completeExceptionally(this.failure);
                }
            });
        }

        /** The answer of the server that leads counts most, and that of something that is not a server least. */
        private void keep(Unanswered other) {
            boolean isWeak = failure == null || failure.answer == null || failure.answer.errorCode().equals("not_serving");
            if (failure == null || failure.isForeign() || isWeak && !other.isForeign()) {
                failure = other;
            }
        }
    }

    /** A request may be repeated, and may have been executed. */
    static final class Unanswered extends Exception {
        private static final long serialVersionUID = 1;

        /** Java's message if it has received something other than the first line of an answer. */
        private static final Pattern NO_STATUS_LINE = Pattern.compile(
                "^(?:parsing HTTP/1.1 status line, receiving \\[|Invalid status line: \"?)(.*?)[\\]\"]?(?:, parser state.*)?$",
                Pattern.DOTALL);

        /** The answer of the server; {@code null}: there is none. */
        final transient Answer answer;
        /** When the server wants to be asked again. */
        private final long retryAfterSeconds;

        Unanswered(String problem) {
            super(problem);
            answer = null;
            retryAfterSeconds = 0;
        }

        Unanswered(String url, Throwable failure) {
            super(url + portHint(url) + ": " + described(unwrapped(failure)), unwrapped(failure));
            answer = null;
            retryAfterSeconds = 0;
        }

        Unanswered(String url, Answer answer, long retryAfterSeconds) {
            super(url + ": " + answer.errorCode() + ": " + answer.errorMessage());
            this.answer = answer;
            this.retryAfterSeconds = retryAfterSeconds;
        }

        private static Throwable unwrapped(Throwable failure) {
            return failure instanceof CompletionException && failure.getCause() != null ? failure.getCause() : failure;
        }

        private static String described(Throwable failure) {
            if (hasCause(failure, UnresolvedAddressException.class)) {
                return "the host is unknown";
            }
            if (failure instanceof HttpConnectTimeoutException) {
                return "no connection in time";
            }
            if (failure instanceof ConnectException) {
                return "the connection was refused, or the host cannot be reached";
            }
            if (speaksNoTls(failure)) {
                return "this port does not speak TLS; use http, or the HTTP listener of a server with TLS";
            }
            if (speaksNoHttp(failure)) {
                return "this port does not speak HTTP, or only with TLS; give the HTTP listener (signalbox serve --http-port)";
            }
            return failure.getMessage() == null ? failure.toString() : failure.getMessage();
        }

        private static boolean hasCause(Throwable failure, Class<?> kind) {
            for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
                if (kind.isInstance(cause)) {
                    return true;
                }
            }
            return false;
        }

        /** Java has no class for this failure, so its message is compared. With another message, an acquire tries again in vain. */
        private static boolean speaksNoTls(Throwable failure) {
            return failure instanceof SSLException
                    && String.valueOf(failure.getMessage()).matches("(Unrec|Unsup).* SSL message.*");
        }

        /** Compares the message, like {@link #speaksNoTls}. An answer may also break off within its first line. */
        private static boolean speaksNoHttp(Throwable failure) {
            Matcher begin = NO_STATUS_LINE.matcher(String.valueOf(failure == null ? null : failure.getMessage()));
            return begin.find() && !begin.group(1).isEmpty() && !begin.group(1).startsWith("HTTP/")
                    && !"HTTP/".startsWith(begin.group(1));
        }

        /** Whether what listens there is certainly not an HTTP server, so that repeating does not help. */
        boolean isForeign() {
            return speaksNoTls(getCause()) || speaksNoHttp(getCause());
        }

        /** Whether no server has received the request. */
        boolean isUnsent() {
            return getCause() instanceof ConnectException || getCause() instanceof HttpConnectTimeoutException
                    || isUntrusted() || isForeign();
        }

        /** Whether the certificate of the server is not trusted, so that repeating does not help. */
        boolean isUntrusted() {
            return hasCause(getCause(), CertificateException.class) || hasCause(getCause(), CertPathBuilderException.class);
        }
    }

    /** The pauses between repeated requests: random, and longer each time. */
    static final class Pauses {
        private static final Duration FIRST = Duration.ofMillis(100);
        private static final long RETRY_AFTER_SECONDS_MAX = 5;

        private Duration span = Duration.ZERO;

        void reset() {
            span = Duration.ZERO;
        }

        /** Makes the next pause as long as the longest. */
        void lengthen() {
            span = Duration.ofDays(1);
        }

        /**
         * The next pause.
         *
         * @param longest how long it is at most, unless the server wants a longer one
         * @param failure why the request is repeated; {@code null}: the answer is of no use
         */
        Duration next(Duration longest, Throwable failure) {
            span = min(span.multipliedBy(2).compareTo(FIRST) < 0 ? FIRST : span.multipliedBy(2), longest);
            long half = span.toNanos() / 2;
            Duration pause = Duration.ofNanos(half + ThreadLocalRandom.current().nextLong(half + 1));
            return failure instanceof Unanswered unanswered
                    ? pause.plusSeconds(Math.min(unanswered.retryAfterSeconds, RETRY_AFTER_SECONDS_MAX))
                    : pause;
        }
    }
}
