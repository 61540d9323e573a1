package io.github.signalbox;

import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * The answer of a server to a request, success or refusal, or the part of it about one lease.
 *
 * @param sent the time of {@link LeaseClock} when the request was about to be sent
 */
record Answer(int status, Map<String, Object> body, long sent) {
    String state() {
        return text("state");
    }

    /** The end of the validity, on {@link LeaseClock}. */
    long until() {
        return sent + TimeUnit.MILLISECONDS.toNanos(number("valid_ms"));
    }

    String errorCode() {
        return error().text("code");
    }

    String errorMessage() {
        return error().text("message");
    }

    private Answer error() {
        return part(body.get("error"));
    }

    /** The answer about the lease, for a renewal of one key; an answer without a state if the body has none. */
    Answer lease() {
        List<?> leases = list("leases");
        return part(leases.isEmpty() ? null : leases.get(0));
    }

    @SuppressWarnings("unchecked")
    private Answer part(Object part) {
        return new Answer(status, part instanceof Map<?, ?> map ? (Map<String, Object>) map : Map.of(), sent);
    }

    boolean refusesToken() {
        return status == 401 || status == 403 || lease().state().equals("not_permitted");
    }

    /** Empty if it is missing. */
    String text(String key) {
        return body.get(key) instanceof String text ? text : "";
    }

    /** 0 if it is missing. */
    long number(String key) {
        return body.get(key) instanceof Number number ? number.longValue() : 0;
    }

    long fence() {
        try {
            return Long.parseUnsignedLong(text("grant"));
        } catch (NumberFormatException missing) {
            return 0;
        }
    }

    /** The slots of each claim; empty if no name has slots. */
    List<List<Integer>> slots() {
        return list("slots").stream()
                .map(claim -> claim instanceof List<?> slots ? slots : List.of())
                .map(slots -> slots.stream().filter(Number.class::isInstance).map(slot -> ((Number) slot).intValue()).toList())
                .toList();
    }

    private List<?> list(String key) {
        return body.get(key) instanceof List<?> list ? list : List.of();
    }
}
