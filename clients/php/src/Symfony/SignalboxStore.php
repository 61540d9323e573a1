<?php

declare(strict_types=1);

namespace Signalbox\Symfony;

use Signalbox\{Busy, Client, Failure, Lost, Misuse, Permit, QueueFull, Rules, TimedOut};
use Symfony\Component\Lock\BlockingStoreInterface;
use Symfony\Component\Lock\Exception\{InvalidArgumentException, InvalidTtlException};
use Symfony\Component\Lock\Exception\{LockConflictedException, LockReleasingException, LockStorageException};
use Symfony\Component\Lock\Key;

/**
 * Stores the locks of Symfony's LockFactory in signalbox. A lock that blocks waits in the server's fair queue.
 *
 * A lock lasts for the store's time to live after each refresh, whatever shorter time it was created with, so others get a lock
 * whose process has died only after that. A lock cannot be created with a longer one.
 */
final class SignalboxStore implements BlockingStoreInterface
{
    /** How long one request waits; another one follows. */
    private const WAIT_SECONDS = 3600.0;

    /** @var \WeakMap<Key, Permit> */
    private \WeakMap $permits;

    /**
     * @param int|null $maximum how many locks of a resource may be held at once, 1 or more; null if an administrator declares that
     * @param float $ttlSeconds the time to live, 1 s or more; LockFactory's default is 300
     * @throws InvalidArgumentException of the time to live, an InvalidTtlException
     */
    public function __construct(
        private readonly Client $client,
        private readonly ?int $maximum = 1,
        private readonly float $ttlSeconds = 300.0,
    ) {
        try {
            Rules::atLeast(1, $maximum, 'the maximum of the store');
        } catch (Misuse $misuse) {
            throw new InvalidArgumentException($misuse->getMessage(), 0, $misuse);
        }
        try {
            Rules::ttl($ttlSeconds, 'ttlSeconds of the store');
        } catch (Misuse $misuse) {
            throw new InvalidTtlException($misuse->getMessage(), 0, $misuse);
        }
        $this->permits = new \WeakMap();
    }

    public function save(Key $key): void
    {
        $this->acquire($key, 0.0);
    }

    public function waitAndSave(Key $key): void
    {
        $this->acquire($key, self::WAIT_SECONDS);
    }

    private function acquire(Key $key, float $waitSeconds): void
    {
        if ($this->exists($key)) {
            return;
        }
        $key->markUnserializable(); // The permit belongs to this process.
        while (true) {
            try {
                $this->permits[$key] = $this->client->acquire(
                    (string) $key,
                    maximum: $this->maximum,
                    ttlSeconds: $this->ttlSeconds,
                    waitSeconds: $waitSeconds,
                );
                $key->reduceLifetime($this->permits[$key]->timeLeft());
                return;
            } catch (TimedOut) {
                continue;
            } catch (Busy | QueueFull $failure) {
                throw new LockConflictedException($failure->getMessage(), 0, $failure);
            } catch (Failure $failure) {
                throw new LockStorageException($failure->getMessage(), 0, $failure);
            }
        }
    }

    public function putOffExpiration(Key $key, float $ttl): void
    {
        if ($ttl > $this->ttlSeconds) {
            throw new InvalidTtlException("the lock \"$key\" cannot last for $ttl s; create the store with a longer time to live than {$this->ttlSeconds} s");
        }
        try {
            $permit = $this->permits[$key] ?? throw new LockConflictedException("the lock \"$key\" is not held");
            $permit->refresh();
            $key->reduceLifetime(min($ttl, $permit->timeLeft()));
        } catch (Lost $lost) {
            throw new LockConflictedException($lost->getMessage(), 0, $lost);
        } catch (Failure $failure) {
            throw new LockStorageException($failure->getMessage(), 0, $failure);
        }
    }

    public function delete(Key $key): void
    {
        $permit = $this->permits[$key] ?? null;
        unset($this->permits[$key]);
        try {
            $permit?->release();
        } catch (Lost) {
            // It is not held, as requested.
        } catch (Failure $failure) {
            throw new LockReleasingException($failure->getMessage(), 0, $failure);
        }
    }

    public function exists(Key $key): bool
    {
        return ($this->permits[$key] ?? null)?->timeLeft() > 0 && !$key->isExpired();
    }
}
