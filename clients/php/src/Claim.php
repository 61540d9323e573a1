<?php

declare(strict_types=1);

namespace Signalbox;

/** The resources of one name that a request asks for. */
final class Claim
{
    /**
     * @param string $name 1 to 65535 bytes of any kind
     * @param int $resources how many, 1 or more
     * @param int|null $maximum how many may be in use at once, 1 or more; all clients of the name should give the same one, and a
     *     declared semaphore needs none
     * @param int|null $slot this slot of a semaphore that is declared with numbered slots, 0 or more
     * @throws Misuse
     */
    public function __construct(
        public readonly string $name,
        public readonly int $resources = 1,
        public readonly ?int $maximum = null,
        public readonly ?int $slot = null,
    ) {
        if ($name === '') {
            throw new Misuse('a name is empty; use a text');
        }
        Rules::bytes(Rules::NAME_BYTES_MAX, $name, 'a name');
        Rules::atLeast(1, $resources, "cannot acquire \"$name\": resources");
        Rules::atLeast(1, $maximum, "cannot acquire \"$name\": maximum");
        Rules::atLeast(0, $slot, "cannot acquire \"$name\": slot");
        if ($resources > ($maximum ?? $resources)) {
            throw new Misuse("cannot acquire \"$name\": resources is $resources and maximum $maximum; use resources up to maximum");
        }
        if ($resources > 1 && $slot !== null) {
            throw new Misuse("cannot acquire \"$name\": resources is $resources and slot is given; a slot is one resource");
        }
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
