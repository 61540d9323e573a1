<?php

declare(strict_types=1);

namespace Signalbox;

/**
 * Holds resources until it is released or lost. It lasts for its time to live after each refresh().
 */
final class Permit
{
    private float $until;
    private readonly float $ttl;
    private readonly int $fence;

    /** @var list<list<int>> */
    private readonly array $slots;

    private float $asked;

    /** Why the permit is lost if that is found out at its end. */
    private string $reason = 'expired';

    /** Why it is lost or released; null: it is held. */
    private ?string $over = null;

    private bool $isRevoked = false;

    /**
     * @internal
     * @param non-empty-list<string> $names
     */
    public function __construct(
        private readonly Client $client,
        private readonly Servers $servers,
        private readonly \Closure $onEvent,
        private readonly array $names,
        private readonly string $key,
        private readonly bool $isShared,
        Answer $answer,
    ) {
        $this->asked = $answer->sent;
        $this->until = $answer->until($answer->body);
        $this->ttl = $answer->body['ttl_ms'] / 1000;
        $this->fence = (int) $answer->body['grant'];
        $this->slots = $answer->body['slots'];
        $this->report('acquired');
    }

    /**
     * Renews the permit, and throws Lost if it is lost, or if an administrator takes it away; then its reason is "revoked", and the
     * permit is still valid for timeLeft(). Call it between the steps of the work, as often as you like: it asks the server at most
     * ten times in a time to live. It also throws Lost once the permit is released.
     *
     * If no server answers, it waits for three seconds at most and not after the end of the permit, and returns while that is valid.
     *
     * @throws Lost|Misuse
     */
    public function refresh(): void
    {
        $this->check();
        if (!$this->isRevoked && Clock::now() - $this->asked >= $this->ttl / 10) {
            $this->renew();
            $this->check();
        }
        if ($this->isRevoked) {
            throw $this->lost('revoked');
        }
    }

    private function renew(): void
    {
        $this->asked = Clock::now();
        try {
            $patience = min($this->ttl / 3, Servers::ANSWER_SECONDS);
            $answer = $this->servers->post('renew', ['keys' => [$this->key]], 0.0, $patience, $this->timeLeft());
        } catch (Unanswered) {
            $this->reason = 'unreachable';
            return;
        }
        if (!$this->isInTime()) {
            return; // It was over before the answer came, and stays so.
        }
        $lease = $answer->body['leases'][0] ?? ['state' => 'not_permitted'];
        switch ($answer->status === 200 ? $lease['state'] : 'not_permitted') {
            case 'held':
                [$this->until, $this->reason] = [max($this->until, $answer->until($lease)), 'expired'];
                $this->report('renewed');
                break;
            case 'revoking':
                [$this->until, $this->reason, $this->isRevoked] = [$answer->until($lease), 'revoked', true];
                $this->report('revoking');
                break;
            case 'not_permitted':
                $this->reason = 'not_permitted';
                break;
            default:
                $this->end($lease['reason'] ?? 'expired');
        }
    }

    private function isInTime(): bool
    {
        return Clock::now() + Clock::RESOLUTION < $this->until;
    }

    /**
     * Throws Lost if the permit is not valid now. It reads the clock and does not ask the server, so it is right also in a process
     * that was stopped, and does not learn of a revocation.
     *
     * @throws Lost|Misuse
     */
    public function check(): void
    {
        if (!$this->servers->isOwn()) {
            throw new Misuse("the permit for \"{$this->names[0]}\" belongs to the parent of this process");
        }
        if ($this->over === null && !$this->isInTime()) {
            $this->end($this->reason);
        }
        if ($this->over !== null) {
            throw $this->lost($this->over);
        }
    }

    private function end(string $reason): void
    {
        $this->over = $reason;
        $this->report('lost', ['reason' => $reason]);
    }

    private function lost(string $reason): Lost
    {
        $what = $reason === 'released' ? 'was released; acquire again' : 'is lost: ' . Failure::why($reason) . '; stop the work';
        return new Lost("the permit for \"{$this->names[0]}\" $what", $reason);
    }

    /** For how many seconds the permit is valid without another answer of the server; 0 if it is lost or released. */
    public function timeLeft(): float
    {
        return $this->over === null ? max($this->until - Clock::now() - Clock::RESOLUTION, 0.0) : 0.0;
    }

    /**
     * The fencing token, which is greater than those of all grants of the name before. Send it with each write to a store, and let
     * the store refuse a lower one than it has seen. Of several names, it is the fencing token of the first in the order of their
     * bytes, if that name comes first in this order in all requests for it.
     */
    public function fence(): int
    {
        return $this->fence;
    }

    /**
     * The slots of the name, or of another one of several.
     *
     * @return list<int>
     */
    public function slots(?string $name = null): array
    {
        $index = $name === null ? 0 : array_search($name, $this->names, true);
        return $index === false ? [] : $this->slots[$index] ?? [];
    }

    /**
     * Gives the resources back, so that others can get them at once. It takes a few seconds at most, and may be repeated.
     *
     * @throws Lost if the permit was lost before
     * @throws Unreachable if no server has confirmed it, so that others get the resources only after the time to live
     * @throws Misuse in a fork of the process that has acquired it
     */
    public function release(): void
    {
        $this->releaseAs(false);
    }

    /**
     * Like release(), for a permit of Client::acquireShared(): the result is there, and all clients that wait for it are informed.
     *
     * @throws Lost|Unreachable|Misuse as release(); Misuse also for another permit, which stays held
     */
    public function releaseDone(): void
    {
        if (!$this->isShared) {
            throw new Misuse("the permit for \"{$this->names[0]}\" is not one of acquireShared(): use release()");
        }
        $this->releaseAs(true);
    }

    private function releaseAs(bool $isDone): void
    {
        if ($this->over === 'released') {
            return;
        }
        $this->check();
        $this->over = 'released';
        $failure = $this->client->giveBack($this->key, isDone: $isDone);
        $this->report('released');
        if ($failure !== '') {
            throw new Unreachable("cannot release \"{$this->names[0]}\": $failure; others get it after its time to live");
        }
    }

    /** @param array<string, mixed> $more */
    private function report(string $event, array $more = []): void
    {
        ($this->onEvent)($event, $more + ['name' => $this->names[0], 'fence' => $this->fence, 'time_left' => $this->timeLeft()]);
    }
}
