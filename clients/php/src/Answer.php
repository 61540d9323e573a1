<?php

declare(strict_types=1);

namespace Signalbox;

/**
 * The answer of a server to a request: success or a refusal.
 *
 * @internal
 */
final class Answer
{
    /**
     * @param float $sent when the request was about to be sent
     * @param array<string, mixed> $body
     * @param bool $isOpen another server may have received the request, and execute it later
     */
    public function __construct(
        public readonly int $status,
        public readonly float $sent,
        public readonly array $body,
        public readonly int $retryAfter,
        public bool $isOpen = false,
    ) {
    }

    public function code(): string
    {
        return $this->body['error']['code'] ?? '';
    }

    public function message(): string
    {
        return $this->body['error']['message'] ?? "status {$this->status}";
    }

    /** Whether another token may help. */
    public function refusesToken(): bool
    {
        return in_array($this->status, [401, 403], true) || ($this->body['leases'][0]['state'] ?? '') === 'not_permitted';
    }

    /**
     * The end of the validity of a lease in this answer.
     *
     * @param array<string, mixed> $lease
     */
    public function until(array $lease): float
    {
        return $this->sent + ($lease['valid_ms'] ?? 0) / 1000;
    }
}

/**
 * No server has answered a request, which may have been executed and can be repeated.
 *
 * @internal
 */
final class Unanswered extends \RuntimeException
{
    /**
     * @param bool $isSent a server may have received it
     * @param bool $isFinal repeating does not help: the server is not trusted, or is foreign
     * @param bool $isForeign what listens there certainly speaks another protocol
     */
    public function __construct(
        string $message,
        public readonly ?Answer $answer = null,
        public bool $isSent = true,
        public bool $isFinal = false,
        public readonly bool $isForeign = false,
    ) {
        parent::__construct($message);
    }
}
