<?php

declare(strict_types=1);

namespace Signalbox;

/** What a request wants of one name. */
final class Claim
{
    /**
     * @param string $name any bytes
     * @param int $resources how many
     * @param int|null $maximum how many may be in use at once; a declared semaphore needs none
     * @param int|null $slot this slot of a declared semaphore with numbered slots
     */
    public function __construct(
        public readonly string $name,
        public readonly int $resources = 1,
        public readonly ?int $maximum = null,
        public readonly ?int $slot = null,
    ) {
    }

    /**
     * The claim as the server reads it.
     *
     * @internal
     * @return array<string, int|string>
     */
    public function body(): array
    {
        $numbers = ['resources' => $this->resources, 'maximum' => $this->maximum, 'slot' => $this->slot];
        return self::text('name', $this->name) + array_filter($numbers, fn ($number) => $number !== null);
    }

    /**
     * Bytes under the key for texts, or the one for bytes that are not UTF-8.
     *
     * @internal
     * @return array<string, string>
     */
    public static function text(string $key, string $bytes): array
    {
        return preg_match('//u', $bytes) ? [$key => $bytes] : ["{$key}_hex" => bin2hex($bytes)];
    }
}
