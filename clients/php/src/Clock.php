<?php

declare(strict_types=1);

namespace Signalbox;

/**
 * The clock that leases are counted on. On Linux it goes on while the machine is suspended; elsewhere it may stand still.
 *
 * @internal
 */
final class Clock
{
    /** How much later than its value a reading may have been: /proc/uptime has hundredths of a second. */
    public const RESOLUTION = 0.01;

    private static ?bool $hasUptime = null;

    /** Seconds since some beginning. */
    public static function now(): float
    {
        self::$hasUptime ??= @file_get_contents('/proc/uptime') !== false;
        return self::$hasUptime ? (float) file_get_contents('/proc/uptime') : hrtime(true) / 1e9;
    }
}
