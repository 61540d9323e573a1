<?php

declare(strict_types=1);

namespace Signalbox;

/**
 * The clock that measures leases. On Linux it keeps running while the machine is suspended; elsewhere it may stand still.
 *
 * @internal
 */
final class Clock
{
    /** How much later than its value a reading may have been: /proc/uptime has hundredths of a second. */
    public const RESOLUTION = 0.01;

    /** How far /proc/uptime is ahead of hrtime(). It grows when the machine is suspended. */
    private static ?float $ahead = null;

    /** Seconds since an arbitrary start. It also works where the file is missing, or cannot be read for lack of descriptors. */
    public static function now(): float
    {
        // In this order: a program that is stopped between the two is not taken for a suspended machine.
        $uptime = @file_get_contents('/proc/uptime');
        $now = hrtime(true) / 1e9;
        $ahead = $uptime === false ? self::$ahead ?? 0.0 : (float) $uptime - $now;
        self::$ahead = max(self::$ahead ?? $ahead, $ahead);
        return $now + self::$ahead;
    }
}
