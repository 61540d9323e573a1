package io.github.signalbox;

import io.github.signalbox.SignalboxException.Misuse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * What an acquire asks for: resources of one name, or of several names, all or none.
 *
 * <pre>{@code
 * Request.of("gpu").maximum(8).resources(2).also("licence").maximum(1).waitUpTo(Duration.ofMinutes(1))
 * }</pre>
 *
 * <p>Requests do not change: each method returns another one, so a request may be a constant. All methods throw
 * {@link Misuse} if a value is out of range.
 */
public final class Request {
    private static final long U32_MAX = 0xffff_ffffL;
    private static final Duration DEFAULT_TTL = Duration.ofSeconds(30);
    private static final Duration TTL_MIN = Duration.ofSeconds(1);

    private final List<String> names;
    /** The claims of the JSON request, in the order of the names. */
    private final List<Map<String, Object>> claims;
    /** The other fields of the JSON request. */
    private final Map<String, Object> fields;

    private Request(List<String> names, List<Map<String, Object>> claims, Map<String, Object> fields) {
        this.names = names;
        this.claims = claims;
        this.fields = fields;
    }

    /**
     * Asks for one resource of a name.
     *
     * @param name the name
     * @return the request
     */
    public static Request of(String name) {
        return new Request(List.of(), List.of(), Map.of()).also(name);
    }

    /**
     * Asks for one resource of a name that is not UTF-8.
     *
     * @param name the bytes of the name
     * @return the request
     */
    public static Request of(byte[] name) {
        return new Request(List.of(), List.of(), Map.of()).also(name);
    }

    /**
     * Asks for a further name too: all names are granted, or none. {@link #maximum}, {@link #resources} and {@link #slot}
     * are about the name before them.
     *
     * @param name the further name
     * @return the request with it
     */
    public Request also(String name) {
        return also(name, "name", unicode(name));
    }

    /**
     * As {@link #also(String)}, for a name that is not UTF-8.
     *
     * @param name the bytes of the name
     * @return the request with it
     */
    public Request also(byte[] name) {
        return also(new String(name, StandardCharsets.UTF_8), "name_hex", HexFormat.of().formatHex(name));
    }

    private Request also(String name, String key, String value) {
        List<String> names = new ArrayList<>(this.names);
        names.add(name);
        List<Map<String, Object>> claims = new ArrayList<>(this.claims);
        claims.add(Map.of(key, value));
        return new Request(names, claims, fields);
    }

    /**
     * How many resources of the name may be in use at once. A declared semaphore needs none, and has its capacity.
     *
     * @param maximum the limit, which all clients of the name should state
     * @return the request with it
     */
    public Request maximum(int maximum) {
        return claim("maximum", maximum);
    }

    /**
     * How many resources of the name are acquired; 1 unless given.
     *
     * @param resources how many
     * @return the request with it
     */
    public Request resources(int resources) {
        return claim("resources", resources);
    }

    /**
     * One certain slot of a declared semaphore with numbered slots; any unless given.
     *
     * @param slot its number
     * @return the request with it
     */
    public Request slot(int slot) {
        return claim("slot", slot);
    }

    /**
     * How long to wait in the queue if the resources are in use; not at all unless given. The server has a limit, a day by
     * default.
     *
     * @param wait the time
     * @return the request with it
     */
    public Request waitUpTo(Duration wait) {
        return field("wait_ms", milliseconds("waitUpTo", wait, 0));
    }

    /**
     * Does not wait if so many requests wait already.
     *
     * @param waiting how many
     * @return the request with it
     */
    public Request queueMax(int waiting) {
        return field("queue_max", natural("queueMax", waiting));
    }

    /**
     * How long the permit lasts when the client can no longer renew it: others get the resources so long after a crash. It
     * is renewed several times in this time, so work may take longer. The server's default, usually 30 s, unless given.
     *
     * @param ttl the time to live, which is at least 1 ms, and within the limits of the server
     * @return the request with it
     */
    public Request ttl(Duration ttl) {
        return field("ttl_ms", milliseconds("ttl", ttl, 1));
    }

    /**
     * A text that the server's listings show beside the permit, such as the id of a job.
     *
     * @param label a text of up to 255 bytes in UTF-8
     * @return the request with it
     */
    public Request label(String label) {
        return field("label", unicode(label));
    }

    /** The request of a single flight. */
    Request shared() {
        return claim("maximum", 1).field("share", true);
    }

    boolean isShared() {
        return fields.containsKey("share");
    }

    /** The first name. */
    String name() {
        return names.get(0);
    }

    int indexOf(String name) {
        return names.indexOf(name);
    }

    Duration queueTime() {
        return duration("wait_ms", Duration.ZERO);
    }

    /** The time to live, as far as it is known before the answer. */
    Duration expectedTtl() {
        Duration ttl = duration("ttl_ms", DEFAULT_TTL);
        return ttl.compareTo(TTL_MIN) < 0 ? TTL_MIN : ttl; // The server's shortest is not less, by default.
    }

    private Duration duration(String key, Duration missing) {
        return fields.get(key) instanceof Long ms ? Duration.ofMillis(ms) : missing;
    }

    /** The fields of the JSON request. */
    Map<String, Object> json(String key) {
        Map<String, Object> json = new LinkedHashMap<>(fields);
        json.put("key", key);
        json.put("claims", claims);
        return json;
    }

    private Request claim(String key, int value) {
        List<Map<String, Object>> claims = new ArrayList<>(this.claims);
        int last = claims.size() - 1;
        claims.set(last, with(claims.get(last), key, natural(key, value)));
        return new Request(names, claims, fields);
    }

    private Request field(String key, Object value) {
        return new Request(names, claims, with(fields, key, value));
    }

    private static Map<String, Object> with(Map<String, Object> map, String key, Object value) {
        Map<String, Object> with = new LinkedHashMap<>(map);
        with.put(key, value);
        return Collections.unmodifiableMap(with);
    }

    private String last() {
        return names.get(names.size() - 1);
    }

    private int natural(String what, int value) {
        if (value < 0) {
            throw new Misuse("cannot acquire \"" + last() + "\": " + what + "(" + value + ") is negative");
        }
        return value;
    }

    /** Rounds up, so that no time becomes none. */
    private Long milliseconds(String what, Duration span, long least) {
        if (span.getSeconds() > U32_MAX / 1000) {
            return U32_MAX;
        }
        long ms = span.plusNanos(TimeUnit.MILLISECONDS.toNanos(1) - 1).toMillis();
        if (span.isNegative() || ms < least) {
            throw new Misuse("cannot acquire \"" + last() + "\": " + what + "(" + span + ") is too short");
        }
        return ms;
    }

    private static String unicode(String text) {
        if (!StandardCharsets.UTF_8.newEncoder().canEncode(text)) {
            throw new Misuse("the text \"" + text + "\" is not valid Unicode; a name can have any bytes as a byte[]");
        }
        return text;
    }
}
