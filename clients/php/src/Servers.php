<?php

declare(strict_types=1);

namespace Signalbox;

/**
 * The servers, and a connection to the one that answered last.
 *
 * @internal
 */
final class Servers
{
    /** How many seconds a server has to answer, beyond the time that a request waits for news. */
    public const ANSWER_SECONDS = 2.0;

    private const IDLE_SECONDS = 10.0; // The server closes an idle connection after 15 s.

    private readonly int $process;
    /** @var resource|null a connection to the first server that can be used again */
    private $idle = null;
    private float $idleSince = 0.0;

    /**
     * @param non-empty-list<string> $urls
     * @param array<string, mixed> $tls options of a stream's context
     */
    public function __construct(private array $urls, private Token $token, private array $tls)
    {
        $this->process = getmypid();
    }

    /** Whether this process has made the client, and is not a fork of the one that has. */
    public function isOwn(): bool
    {
        return getmypid() === $this->process;
    }

    /**
     * Asks the server that answered last, and then the others, until one answers; and once more if the token was refused and
     * its file has another one. That a request is executed twice is no matter, since it has the same key.
     *
     * @param array<string, mixed> $body
     * @param float $poll how long the request may wait for news
     * @throws Unanswered
     */
    public function post(string $path, array $body, float $poll = 0.0, float $patience = self::ANSWER_SECONDS): Answer
    {
        if (!$this->isOwn()) {
            throw new Misuse('this process is a fork of the one that has made the client; make a client after the fork');
        }
        do {
            $used = $this->token->text();
            $answer = $this->ask($path, $body, $poll, $patience);
        } while ($answer->refusesToken() && $this->token->reload() !== $used);
        return $answer;
    }

    private function ask(string $path, array $body, float $poll, float $patience): Answer
    {
        [$failure, $isSent] = [null, false];
        foreach ($this->urls as $index => $url) {
            try {
                $answer = $this->attempt($url, $path, $body, $index === 0 ? $poll : 0.0, $patience);
                unset($this->urls[$index]);
                $this->urls = [$url, ...$this->urls];
                return $answer;
            } catch (Unanswered $unanswered) {
                $isSent = $isSent || $unanswered->isSent;
                // The word of the server that leads is worth the most.
                if (($failure?->answer?->code() ?? 'not_serving') === 'not_serving') {
                    $failure = $unanswered;
                }
            }
        }
        $failure->isSent = $isSent;
        throw $failure;
    }

    private function attempt(string $url, string $path, array $body, float $poll, float $patience): Answer
    {
        $sent = Clock::now();
        $end = hrtime(true) / 1e9 + $poll + $patience;
        $request = $this->request($url, $path, $body + ($poll > 0 ? ['poll_ms' => (int) ($poll * 1000)] : []));
        [$head, $text] = $this->exchange($url, $request, $end);
        $answer = json_decode($text, true);
        if (!preg_match('~^HTTP/1\.\d (\d+)~', $head, $status) || !is_array($answer)) {
            throw new Unanswered("$url: the answer is not one of signalbox; check that this is its HTTP listener");
        }
        $retryAfter = preg_match('/^Retry-After: (\d+)/mi', $head, $seconds) ? min((int) $seconds[1], 5) : 0;
        $answer = new Answer((int) $status[1], $sent, $answer, $retryAfter);
        if ($answer->status === 408 || $answer->status >= 500) {
            throw new Unanswered("$url: {$answer->code()}: {$answer->message()}", $answer);
        }
        return $answer;
    }

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

    /**
     * Sends a request, and reads the head and the body of the answer.
     *
     * @return array{string, string}
     */
    private function exchange(string $url, string $request, float $end): array
    {
        $connection = $this->idleConnection($url);
        if ($connection !== null && @fwrite($connection, $request) === strlen($request)) {
            $first = $this->read($connection, $end, 1);
        }
        if (($first ?? '') === '') { // The server has closed it meanwhile.
            $connection = $this->connect($url, $end);
            if (@fwrite($connection, $request) !== strlen($request)) {
                throw new Unanswered("$url: the connection was closed");
            }
            $first = '';
        }
        $head = $first;
        while (!str_ends_with($head, "\r\n\r\n")) {
            $line = $this->read($connection, $end, null);
            if ($line === '' || strlen($head) > 1 << 16) {
                throw new Unanswered("$url: no answer");
            }
            $head .= $line;
        }
        $length = preg_match('/^Content-Length: (\d+)/mi', $head, $digits) ? (int) $digits[1] : 0;
        $body = '';
        while (strlen($body) < $length) {
            $some = $this->read($connection, $end, $length - strlen($body));
            if ($some === '') {
                throw new Unanswered("$url: the answer is incomplete");
            }
            $body .= $some;
        }
        if (!preg_match('/^Connection: close/mi', $head)) {
            [$this->idle, $this->idleSince] = [$connection, Clock::now()];
        }
        return [$head, $body];
    }

    /** Reads a line, or up to so many bytes; empty at the end of the time or of the connection. */
    private function read($connection, float $end, ?int $length): string
    {
        $left = max($end - hrtime(true) / 1e9, 0.001);
        stream_set_timeout($connection, (int) $left, (int) (fmod($left, 1) * 1e6));
        return (string) @($length === null ? fgets($connection) : fread($connection, min($length, 8192)));
    }

    /** @return resource|null */
    private function idleConnection(string $url)
    {
        $connection = $this->idle;
        $this->idle = null;
        $isUsable = $connection !== null && $url === $this->urls[0] && Clock::now() - $this->idleSince < self::IDLE_SECONDS;
        return $isUsable ? $connection : null;
    }

    /** @return resource */
    private function connect(string $url, float $end)
    {
        $this->token->reload();
        $parts = parse_url($url);
        $isSecure = $parts['scheme'] === 'https';
        $address = ($isSecure ? 'tls' : 'tcp') . "://{$parts['host']}:" . ($parts['port'] ?? ($isSecure ? 443 : 80));
        $context = stream_context_create(['ssl' => $this->tls + ['peer_name' => trim($parts['host'], '[]')]]);
        $reasons = [];
        set_error_handler(function (int $_, string $text) use (&$reasons): bool {
            $reasons[] = $text;
            return true;
        });
        try {
            $seconds = min($end - hrtime(true) / 1e9, self::ANSWER_SECONDS);
            $connection = stream_socket_client($address, $_, $reason, max($seconds, 0.001), STREAM_CLIENT_CONNECT, $context);
        } finally {
            restore_error_handler();
        }
        if ($connection === false) {
            $isFinal = str_contains(implode($reasons), 'certificate verify failed');
            throw new Unanswered("$url: " . ($reasons[0] ?? $reason), isSent: false, isFinal: $isFinal);
        }
        return $connection;
    }

    private function close(): void
    {
        $this->idle = null;
    }
}
