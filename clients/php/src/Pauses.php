<?php

declare(strict_types=1);

namespace Signalbox;

/**
 * The pauses between repeated requests: random, and longer each time.
 *
 * @internal
 */
final class Pauses
{
    private float $span = 0.05;

    /** The next pause in seconds; longer if the server wants that. */
    public function next(Unanswered $after): float
    {
        $this->span = min(2 * $this->span, 2.0);
        return $this->span * random_int(500, 1000) / 1000 + ($after->answer?->retryAfter ?? 0);
    }
}
