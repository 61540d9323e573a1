<?php

declare(strict_types=1);

namespace Signalbox;

/**
 * The servers, which are asked in parallel, and a connection to the one that answered last.
 *
 * @internal
 */
final class Servers
{
    /** How many seconds a server has to answer, beyond the time that a request waits for a change. */
    public const ANSWER_SECONDS = 2.0;

    private const IDLE_SECONDS = 10.0; // The server closes an idle connection after 15 s.

    /** A signal that arrives just before a wait begins does not interrupt it, and its handler runs after this time. */
    private const SIGNAL_SECONDS = 0.2;

    private readonly int $process;

    /** The URL of the server that answered last; null: all have to be asked. */
    private ?string $preferred;

    /** @var resource|null a connection to it that can be used again */
    private $idle = null;
    private float $idleSince = 0.0;

    /**
     * @param non-empty-list<string> $urls
     * @param array<string, mixed> $tls options of a stream's context
     */
    public function __construct(private readonly array $urls, private Token $token, private array $tls)
    {
        $this->process = getmypid();
        $this->preferred = count($urls) === 1 ? $urls[0] : null;
    }

    /** Whether this process has made the client, and is not a fork of the one that has. */
    public function isOwn(): bool
    {
        return getmypid() === $this->process;
    }

    public function hasToken(): bool
    {
        return $this->token->text() !== '';
    }

    /**
     * Asks the servers, and once more if the token was refused and its file has another one. A request may be executed twice
     * without harm, since it has the same key.
     *
     * @param array<string, mixed> $body
     * @param float $poll how long the request may wait for a change
     * @param float $patience how long each server has to answer beyond that
     * @param float $within how long all servers together have
     * @throws Unanswered
     */
    public function post(
        string $path,
        array $body,
        float $poll = 0.0,
        float $patience = self::ANSWER_SECONDS,
        float $within = INF,
    ): Answer {
        if (!$this->isOwn()) {
            throw new Misuse('this process is a fork of the one that has made the client; make a client after the fork');
        }
        $isOpen = false;
        $end = hrtime(true) / 1e9 + $within;
        do {
            $used = $this->token->text();
            $answer = $this->ask($path, $body, $poll, min($patience, $within), $end);
            $isOpen = $answer->isOpen = $isOpen || $answer->isOpen;
        } while ($answer->refusesToken() && $this->token->reload() !== $used);
        return $answer;
    }

    /**
     * Asks the server that answered last, and if it fails or is late, all others in parallel, without waiting for a change; if none has
     * answered yet, asks all in parallel. The first answer counts, and the other attempts end.
     *
     * @param array<string, mixed> $body
     */
    private function ask(string $path, array $body, float $poll, float $patience, float $end): Answer
    {
        $others = array_values(array_diff($this->urls, [$this->preferred]));
        $late = hrtime(true) / 1e9 + $poll + $patience / 2;
        [$attempts, $failures] = [[], []];
        if ($this->preferred !== null) {
            $this->start([$this->preferred], $path, $body, $poll, $patience, $end, $attempts, $failures);
        }
        while (true) {
            if ($others !== [] && ($attempts === [] || hrtime(true) / 1e9 >= $late)) {
                $this->start($others, $path, $body, 0.0, $patience, $end, $attempts, $failures);
                $others = [];
            }
            if ($attempts === []) {
                throw $this->failure($failures);
            }
            $left = min(array_map(fn (Attempt $attempt): float => $attempt->timeLeft(), $attempts));
            foreach (self::ready($attempts, $others === [] ? $left : min($left, $late - hrtime(true) / 1e9)) as $index) {
                try {
                    $answer = $attempts[$index]->proceed();
                } catch (Unanswered $unanswered) {
                    $failures[] = $unanswered;
                    unset($attempts[$index]);
                    continue;
                }
                if ($answer !== null) {
                    $this->keep($attempts[$index]);
                    unset($attempts[$index]);
                    $answer->isOpen = array_filter([...$attempts, ...$failures], fn ($other): bool => $other->isSent) !== [];
                    return $answer;
                }
            }
            foreach ($attempts as $index => $attempt) {
                if ($attempt->timeLeft() <= 0) {
                    $failures[] = $attempt->failed();
                    unset($attempts[$index]);
                }
            }
        }
    }

    /**
     * @param list<string> $urls
     * @param array<string, mixed> $body
     * @param list<Attempt> $attempts gets one for each
     * @param list<Unanswered> $failures gets those that have failed at once
     */
    private function start(
        array $urls,
        string $path,
        array $body,
        float $poll,
        float $patience,
        float $end,
        array &$attempts,
        array &$failures,
    ): void {
        $patience = min($poll + $patience, $end - hrtime(true) / 1e9);
        $body += $poll > 0 ? ['poll_ms' => (int) ($poll * 1000)] : [];
        foreach ($urls as $url) {
            $idle = $url === $this->preferred && Clock::now() - $this->idleSince < self::IDLE_SECONDS ? $this->idle : null;
            if ($idle === null) {
                $this->token->reload();
            }
            try {
                $attempts[] = new Attempt($url, $this->request($url, $path, $body), $this->tls, $idle, $patience);
            } catch (Unanswered $unanswered) {
                $failures[] = $unanswered;
            }
        }
        $this->idle = null;
    }

    /**
     * Waits until attempts can continue, or for a while.
     *
     * @param non-empty-array<int, Attempt> $attempts
     * @return list<int> their keys
     */
    private static function ready(array $attempts, float $seconds): array
    {
        [$read, $write, $none] = [[], [], []];
        foreach ($attempts as $index => $attempt) {
            if ($attempt->isToWrite()) {
                $write[$index] = $attempt->stream();
            } else {
                $read[$index] = $attempt->stream();
            }
        }
        $seconds = min(max($seconds, 0.001), self::SIGNAL_SECONDS);
        if (@stream_select($read, $write, $none, (int) $seconds, (int) (fmod($seconds, 1) * 1e6)) === false) {
            usleep(1000); // A signal, or a stream whose number is too large for it.
            return array_keys($attempts);
        }
        return [...array_keys($read), ...array_keys($write)];
    }

    /** The server has answered, so it is asked first from now on, over the same connection. */
    private function keep(Attempt $attempt): void
    {
        $this->preferred = $attempt->url;
        [$this->idle, $this->idleSince] = [$attempt->isReusable() ? $attempt->stream() : null, Clock::now()];
    }

    /**
     * The failure that is reported of several: that of the server that leads counts most, and that of what is not a server least.
     *
     * @param non-empty-list<Unanswered> $failures
     */
    private function failure(array $failures): Unanswered
    {
        $this->preferred = count($this->urls) === 1 ? $this->urls[0] : null;
        $leads = fn (Unanswered $failure): bool => !in_array($failure->answer?->code(), [null, 'not_serving'], true);
        $isServer = fn (Unanswered $failure): bool => !$failure->isForeign;
        $failure = current(array_filter($failures, $leads)) ?: current(array_filter($failures, $isServer)) ?: $failures[0];
        $failure->isSent = array_filter($failures, fn (Unanswered $failure): bool => $failure->isSent) !== [];
        $failure->isFinal = array_filter($failures, fn (Unanswered $failure): bool => !$failure->isFinal) === [];
        return $failure;
    }

    /** @param array<string, mixed> $body */
    private function request(string $url, string $path, array $body): string
    {
        $parts = parse_url($url);
        $host = $parts['host'] . (isset($parts['port']) ? ":{$parts['port']}" : '');
        $text = json_encode($body, JSON_THROW_ON_ERROR);
        $token = $path === 'release' ? '' : $this->token->text();
        $headers = ['Host' => $host, 'Content-Type' => 'application/json', 'Content-Length' => strlen($text)];
        if ($token !== '') {
            $headers['Authorization'] = "Bearer $token";
        }
        $head = 'POST ' . ($parts['path'] ?? '') . "/api/v1/lease/$path HTTP/1.1\r\n";
        foreach ($headers as $name => $value) {
            $head .= "$name: $value\r\n";
        }
        return "$head\r\n$text";
    }
}
