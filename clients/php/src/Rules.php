<?php

declare(strict_types=1);

namespace Signalbox;

/**
 * Checks of the values that a program gives.
 *
 * @internal
 */
final class Rules
{
    public const NAME_BYTES_MAX = 65_535;
    public const LABEL_BYTES_MAX = 255;
    public const CLAIMS_MAX = 64;

    private const TTL_SECONDS_MIN = 1;

    /**
     * @param string $what begins the message
     * @throws Misuse also if the value is not a number (NAN)
     */
    public static function atLeast(int $least, int|float|null $value, string $what): void
    {
        if ($value !== null && !($value >= $least)) {
            throw new Misuse("$what is $value; use $least or more");
        }
    }

    /** @throws Misuse */
    public static function ttl(?float $seconds, string $what): void
    {
        self::atLeast(self::TTL_SECONDS_MIN, $seconds, $what);
    }

    /** @throws Misuse */
    public static function bytes(int $most, string $text, string $what): void
    {
        if (strlen($text) > $most) {
            throw new Misuse("$what has " . strlen($text) . " bytes; use $most or less");
        }
    }
}
