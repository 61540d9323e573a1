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
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

/**
 * The request of an acquire: resources of one name, or of several names, all or none.
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
    private static final long TTL_MS_MIN = 1000;
    private static final int CLAIMS_MAX = 64;
    private static final int NAME_BYTES_MAX = 65_535;
    private static final int LABEL_BYTES_MAX = 255;

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
        return also(name, unicode("name", name, NAME_BYTES_MAX), "name", name);
    }

    /**
     * Like {@link #also(String)}, for a name that is not UTF-8.
     *
     * @param name the bytes of the name
     * @return the request with it
     */
    public Request also(byte[] name) {
        Objects.requireNonNull(name, "name");
        String text = new String(name, StandardCharsets.UTF_8);
        return also(text, bytes("name", name.length, NAME_BYTES_MAX), "name_hex", HexFormat.of().formatHex(name));
    }

    private Request also(String name, int bytes, String key, String value) {
        if (bytes == 0) {
            throw new Misuse("a name is empty; use a text");
        }
        if (claims.stream().anyMatch(claim -> value.equals(claim.get(key)))) {
            throw new Misuse("the name \"" + name + "\" is requested twice; use resources for the sum");
        }
        if (claims.size() == CLAIMS_MAX) {
            throw new Misuse("more than " + CLAIMS_MAX + " names are requested; use " + CLAIMS_MAX + " or less");
        }
        List<String> names = new ArrayList<>(this.names);
        names.add(name);
        List<Map<String, Object>> claims = new ArrayList<>(this.claims);
        claims.add(Map.of(key, value));
        return new Request(names, claims, fields);
    }

    /**
     * How many resources of the name may be in use at once. A declared semaphore needs no maximum, since its capacity applies.
     *
     * @param maximum the limit, 1 or more; all clients of the name should give the same one
     * @return the request with it
     */
    public Request maximum(int maximum) {
        return claim("maximum", maximum, 1);
    }

    /**
     * How many resources of the name are acquired; 1 unless given.
     *
     * @param resources how many
     * @return the request with it
     */
    public Request resources(int resources) {
        return claim("resources", resources, 1);
    }

    /**
     * A certain slot of a declared semaphore with numbered slots; any slot unless given.
     *
     * @param slot its number
     * @return the request with it
     */
    public Request slot(int slot) {
        return claim("slot", slot, 0);
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
     * Does not wait if this many requests wait already.
     *
     * @param waiting how many
     * @return the request with it
     */
    public Request queueMax(int waiting) {
        return field("queue_max", whole("queueMax", waiting, 0));
    }

    /**
     * How long the permit lasts when the client can no longer renew it: others get the resources this long after a crash. It
     * is renewed several times in this time, so work may take longer. The server's default, usually 30 s, unless given.
     *
     * @param ttl the time to live, 1 s or more; the server bounds it, by an hour unless it is configured (session.max_ttl)
     * @return the request with it
     */
    public Request ttl(Duration ttl) {
        return field("ttl_ms", milliseconds("ttl", ttl, TTL_MS_MIN));
    }

    /**
     * A text that the server's listings show with the permit, such as the id of a job.
     *
     * @param label a text of up to 255 bytes in UTF-8
     * @return the request with it
     */
    public Request label(String label) {
        unicode("label", label, LABEL_BYTES_MAX);
        return field("label", label);
    }

    /** The request of a single flight. */
    Request shared() {
        if (claims.size() > 1 || claims.get(0).size() > 1) {
            throw new Misuse(failure() + "a single flight has one name, without maximum, resources and slot");
        }
        return claim("maximum", 1, 1).field("share", true);
    }

    boolean isShared() {
        return fields.containsKey("share");
    }

    /** The first name. */
    String name() {
        return names.get(0);
    }

    /** All names, for messages. */
    String described() {
        return names.stream().map(name -> '"' + name + '"').collect(Collectors.joining(", "));
    }

    /** The beginning of a message. */
    String failure() {
        return "cannot acquire " + described() + ": ";
    }

    boolean hasSlot() {
        return claims.stream().anyMatch(claim -> claim.containsKey("slot"));
    }

    int indexOf(String name) {
        return names.indexOf(name);
    }

    Duration queueTime() {
        return duration("wait_ms", Duration.ZERO);
    }

    /** The time to live, as far as it is known before the answer. */
    Duration expectedTtl() {
        return duration("ttl_ms", DEFAULT_TTL);
    }

    private Duration duration(String key, Duration missing) {
        return fields.get(key) instanceof Long ms ? Duration.ofMillis(ms) : missing;
    }

    /**
     * The fields of the JSON request.
     *
     * @throws Misuse if values of one name contradict each other
     */
    Map<String, Object> json(String key) {
        for (Map<String, Object> claim : claims) {
            int resources = (int) claim.getOrDefault("resources", 1);
            if (resources > (int) claim.getOrDefault("maximum", resources)) {
                throw new Misuse(failure() + "resources is " + resources + " and maximum " + claim.get("maximum")
                        + "; use resources up to maximum");
            }
            if (resources > 1 && claim.containsKey("slot")) {
                throw new Misuse(failure() + "resources is " + resources + " and slot is given; a slot is one resource");
            }
        }
        Map<String, Object> json = new LinkedHashMap<>(fields);
        json.put("key", key);
        json.put("claims", claims);
        return json;
    }

    private Request claim(String key, int value, int least) {
        List<Map<String, Object>> claims = new ArrayList<>(this.claims);
        int last = claims.size() - 1;
        claims.set(last, with(claims.get(last), key, whole(key, value, least)));
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

    private int whole(String what, int value, int least) {
        if (value < least) {
            throw new Misuse(failure() + what + " is " + value + "; use " + least + " or more");
        }
        return value;
    }

    /** Rounds up, so that only 0 becomes 0. */
    private Long milliseconds(String what, Duration span, long least) {
        if (Objects.requireNonNull(span, what).compareTo(Duration.ofMillis(least)) < 0) {
            throw new Misuse(failure() + what + " is " + span + "; use " + least / 1000 + " s or more");
        }
        if (span.getSeconds() > U32_MAX / 1000) {
            return U32_MAX;
        }
        return span.plusNanos(TimeUnit.MILLISECONDS.toNanos(1) - 1).toMillis();
    }

    /** The length of a text in bytes. */
    private static int unicode(String what, String text, int bytesMax) {
        if (!StandardCharsets.UTF_8.newEncoder().canEncode(Objects.requireNonNull(text, what))) {
            throw new Misuse("the " + what + " \"" + text + "\" is not valid Unicode; a name can have any bytes as a byte[]");
        }
        return bytes(what, text.getBytes(StandardCharsets.UTF_8).length, bytesMax);
    }

    private static int bytes(String what, int bytes, int bytesMax) {
        if (bytes > bytesMax) {
            throw new Misuse("a " + what + " has " + bytes + " bytes; use " + bytesMax + " or less");
        }
        return bytes;
    }
}
