package io.github.signalbox;

/**
 * Why a request failed, or a permit is not valid. Each kind is a class of its own. An acquire that fails holds nothing.
 */
public abstract sealed class SignalboxException extends RuntimeException {
    private static final long serialVersionUID = 1;

    /** Empty if no server refused the request. */
    private final String code;

    private SignalboxException(String message, String code, Throwable cause) {
        super(message, cause);
        this.code = code;
    }

    /**
     * The server's code for the refusal, such as {@code paused} (docs/http.md).
     *
     * @return the code; empty if no server refused the request
     */
    public String code() {
        return code;
    }

    /**
     * The resources are in use, or the semaphore is paused: try again later, or wait with {@link Request#waitUpTo}. Or the
     * server has no room, with the {@link #code} {@code limit_reached}.
     */
    public static final class Busy extends SignalboxException {
        private static final long serialVersionUID = 1;

        Busy(String message, String code) {
            super(message, code, null);
        }
    }

    /** The resources were not free within the time of {@link Request#waitUpTo}. */
    public static final class TimedOut extends SignalboxException {
        private static final long serialVersionUID = 1;

        TimedOut(String message, String code) {
            super(message, code, null);
        }
    }

    /** At least as many requests wait as {@link Request#queueMax} permits. */
    public static final class QueueFull extends SignalboxException {
        private static final long serialVersionUID = 1;

        QueueFull(String message, String code) {
            super(message, code, null);
        }
    }

    /** The permit was lost or released, or an administrator ended the wait. */
    public static final class Lost extends SignalboxException {
        private static final long serialVersionUID = 1;

        /** Why the permit or the wait is over. */
        private final String reason;

        Lost(String message, String reason, String code) {
            super(message, code, null);
            this.reason = reason;
        }

        /**
         * Why the permit or the wait is over.
         *
         * @return one of those of {@link Permit#onLost}, or {@code released}, or {@code canceled} of a wait
         */
        public String reason() {
            return reason;
        }
    }

    /** No server could answer for the time of {@link Client.Builder#unreachableAfter}, or no certificate is trusted. */
    public static final class Unreachable extends SignalboxException {
        private static final long serialVersionUID = 1;

        Unreachable(String message, Throwable cause) {
            super(message, "", cause);
        }
    }

    /** The client has no right to acquire the name, or its token is not accepted. */
    public static final class NotPermitted extends SignalboxException {
        private static final long serialVersionUID = 1;

        NotPermitted(String message, String code) {
            super(message, code, null);
        }
    }

    /** The request or the configuration cannot succeed as it is. */
    public static final class Misuse extends SignalboxException {
        private static final long serialVersionUID = 1;

        Misuse(String message) {
            this(message, "", null);
        }

        Misuse(String message, String code, Throwable cause) {
            super(message, code, cause);
        }
    }

    /**
     * The failure of an acquire for an answer that grants nothing.
     *
     * @param hasToken whether the client has shown a token
     */
    static SignalboxException refused(Request request, String code, String message, boolean hasToken) {
        String text = request.failure();
        return switch (code) {
            case "busy" -> new Busy(text + "it is in use; try again later, or wait with waitUpTo", code);
            case "paused" -> new Busy(text + "an administrator has paused it; try again later", code);
            case "limit_reached" -> new Busy(text + message, code);
            case "timed_out" -> timedOut(request);
            case "queue_full" ->
                new QueueFull(text + "it is in use, and enough requests wait already; try again later", code);
            case "canceled", "revoked", "removed" -> new Lost(text + why(code), code, code);
            case "unauthorized", "not_permitted", "too_many_wrong_tokens" -> new NotPermitted(text + (hasToken
                    ? "the token is wrong or has expired, or may not acquire it; signalbox token create makes one"
                    : "the client has no token; give it one by tokenFile or SIGNALBOX_TOKEN_FILE"), code);
            case "not_found" -> new Misuse(text + (request.hasSlot()
                    ? "a slot is one of a declared semaphore; declare it with signalbox declare --slots"
                    : message), code, null);
            case "no_such_slot" -> new Misuse(text + "it has no slot with this number", code, null);
            case "too_much" -> new Misuse(text + "it has fewer resources than the request wants", code, null);
            case "maximum_too_small" -> new Misuse(
                    text + "it is declared with more than the maximum of the request; leave maximum out", code, null);
            default -> new Misuse(text + message, code, null);
        };
    }

    /** Why a permit, or a wait, is over, in words; the reason itself if it is one of a later server. */
    static String why(String reason) {
        return switch (reason) {
            case "expired" -> "expired, or the server was restarted without a data directory";
            case "unreachable" -> "no server answered until its lease ended";
            case "not_permitted" -> "the client may no longer acquire it";
            case "revoked" -> "an administrator has revoked it";
            case "removed" -> "an administrator has removed the semaphore";
            case "canceled" -> "an administrator has canceled the request";
            default -> reason;
        };
    }

    static TimedOut timedOut(Request request) {
        return new TimedOut(request.failure() + "it was in use for as long as the request waited; "
                + "try again later, or wait longer", "timed_out");
    }
}
