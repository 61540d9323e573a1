package io.github.signalbox;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.util.OptionalLong;
import java.util.concurrent.atomic.AtomicLong;

/**
 * The clock that measures leases. It is monotonic, and on Linux it also counts while the machine is suspended, when
 * {@link System#nanoTime} stands still.
 */
final class LeaseClock {
    /** The step of {@code /proc/uptime}, in nanoseconds. */
    private static final long STEP = 10_000_000;

    private static final RandomAccessFile UPTIME = open();

    /** How far {@code /proc/uptime} is ahead of {@link System#nanoTime}. It grows when the machine is suspended. */
    private static final AtomicLong AHEAD = new AtomicLong(ahead().orElse(0));

    private LeaseClock() {}

    /** Nanoseconds since an arbitrary start. Compare two of them by their difference. */
    static long now() {
        OptionalLong ahead = ahead();
        long offset = ahead.isPresent() ? AHEAD.accumulateAndGet(ahead.getAsLong(), Math::max) : AHEAD.get();
        return System.nanoTime() + offset;
    }

    /** A lower bound; most of the time the best one so far is higher. */
    private static OptionalLong ahead() {
        if (UPTIME == null) {
            return OptionalLong.empty();
        }
        try {
            // In this order: a program that is stopped between the two is not taken for a suspended machine.
            long uptime = read();
            return OptionalLong.of(uptime - System.nanoTime());
        } catch (IOException unreadable) {
            return OptionalLong.empty();
        }
    }

    private static RandomAccessFile open() {
        try {
            return new RandomAccessFile("/proc/uptime", "r");
        } catch (IOException missing) {
            return null;
        }
    }

    /** Such as {@code 12345.67 4321.00}: seconds with two digits after the point. */
    private static long read() throws IOException {
        byte[] text = new byte[64];
        int length;
        synchronized (UPTIME) {
            UPTIME.seek(0);
            length = UPTIME.read(text);
        }
        long steps = 0;
        for (int i = 0; i < length && text[i] != ' '; i++) {
            if (text[i] != '.') {
                steps = 10 * steps + (text[i] - '0');
            }
        }
        return steps * STEP;
    }
}
