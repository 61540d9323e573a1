package io.github.signalbox;

import java.time.Duration;

/**
 * An event of a permit, or of the request for one: for logs, metrics and spans.
 *
 * @param kind what has happened
 * @param id the number of the acquire in this program, which all events of its permit have
 * @param name the first name that is acquired
 * @param position the place in the queue, for {@link Kind#WAITING}: 1 is served next, 0 is being stored
 * @param fence {@link Permit#fence}; 0 while the request waits
 * @param timeLeft {@link Permit#timeLeft}; for {@link Kind#REVOKING}, the grace period
 * @param reason why the permit was lost, for {@link Kind#LOST}; else empty
 */
public record Event(Kind kind, long id, String name, long position, long fence, Duration timeLeft, String reason) {
    /** The kinds of events. */
    public enum Kind {
        /** The request waits in the queue. It is reported for each answer of the server. */
        WAITING,
        /** The permit is held. */
        ACQUIRED,
        /** The permit is valid for longer. */
        RENEWED,
        /** An administrator takes the permit away when the time left is over. */
        REVOKING,
        /** The permit is no longer held. */
        LOST,
        /** The program has released the permit. */
        RELEASED
    }
}
