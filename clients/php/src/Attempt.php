<?php

declare(strict_types=1);

namespace Signalbox;

/**
 * A request at one server. It never waits: its owner calls proceed() when the stream is ready, so that several servers can be
 * asked in parallel.
 *
 * @internal
 */
final class Attempt
{
    /** @var resource */
    private $stream;
    private bool $isConnected = false;
    private bool $isSecured = true; // Plain connections are, too.

    /** The rest of the request, which is still to be sent. */
    private string $rest;

    /** The part of the answer that has arrived. */
    private string $answer = '';

    /** @var list<string>|null further addresses of the server, if it cannot be reached at the first ones; null: not known yet */
    private ?array $addresses = null;

    /** @var list<string> what PHP has said about the failure */
    private array $reasons = [];

    /** Whether the server may have received the request. */
    public bool $isSent = false;

    private readonly float $sent;

    /** When it is given up, by hrtime(). */
    private readonly float $end;

    /**
     * @param string $request as it is sent
     * @param array<string, mixed> $tls options of a stream's context
     * @param resource|null $idle a connection that the server may have closed meanwhile; null: it makes one
     * @param float $patience how long the server has to answer
     * @throws Unanswered
     */
    public function __construct(
        public readonly string $url,
        private readonly string $request,
        private readonly array $tls,
        private $idle,
        float $patience,
    ) {
        [$this->sent, $this->end, $this->rest] = [Clock::now(), hrtime(true) / 1e9 + $patience, $request];
        if ($idle === null) {
            $this->connect();
        } else {
            $this->stream = $idle;
        }
    }

    /** @return resource */
    public function stream()
    {
        return $this->stream;
    }

    /** Whether it can continue when the stream can be written to, and not when it can be read. */
    public function isToWrite(): bool
    {
        return !$this->isConnected || ($this->isSecured && $this->rest !== '');
    }

    /** For how many seconds the server still has time to answer. */
    public function timeLeft(): float
    {
        return $this->end - hrtime(true) / 1e9;
    }

    /** Whether the connection can have another request, after the answer. */
    public function isReusable(): bool
    {
        return !preg_match('/^Connection:\s*close/mi', $this->answer);
    }

    /**
     * Does what is possible without waiting.
     *
     * @return Answer|null the answer, if it is complete
     * @throws Unanswered
     */
    public function proceed(): ?Answer
    {
        $this->isConnected = true;
        if (!$this->isSecured) {
            $method = $this->tls['crypto_method'] ?? STREAM_CRYPTO_METHOD_TLS_CLIENT;
            $isSecured = $this->quietly(fn () => stream_socket_enable_crypto($this->stream, true, $method));
            if ($isSecured === false) {
                $this->connect();
                return null;
            }
            $this->isSecured = $isSecured === true;
        }
        if ($this->isSecured && $this->rest !== '') {
            $written = $this->quietly(fn () => fwrite($this->stream, $this->rest));
            if ($written === false) {
                $this->connect();
                return null;
            }
            $this->isSent = $this->isSent || $written > 0;
            $this->rest = substr($this->rest, $written);
        }
        return $this->isSecured && $this->rest === '' ? $this->read() : null;
    }

    private function read(): ?Answer
    {
        while (($some = (string) $this->quietly(fn () => fread($this->stream, 1 << 16))) !== '') {
            $this->answer .= $some;
            if (($answer = $this->received()) !== null) {
                return $answer;
            }
        }
        if (!stream_get_meta_data($this->stream)['eof']) {
            return null;
        }
        if ($this->answer === '' && $this->stream === $this->idle) {
            $this->connect(); // The server has closed it meanwhile.
            return null;
        }
        throw $this->failed($this->answer === '' ? 'no answer' : 'the answer is incomplete');
    }

    private function received(): ?Answer
    {
        if (!str_starts_with($this->answer, substr('HTTP/', 0, strlen($this->answer)))) {
            $reason = 'this port does not speak HTTP, or only with TLS; give the HTTP listener (signalbox serve --http-port)';
            throw $this->failed($reason, isForeign: true);
        }
        [$head, $body] = explode("\r\n\r\n", $this->answer, 2) + ['', null];
        if ($body === null && strlen($head) > 1 << 16) {
            throw $this->failed('the answer is not one of signalbox');
        }
        $length = preg_match('/^Content-Length:\s*(\d+)/mi', $head, $digits) ? (int) $digits[1] : 0;
        if ($body === null || strlen($body) < $length) {
            return null;
        }
        $fields = json_decode(substr($body, 0, $length), true);
        if (!preg_match('~^HTTP/1\.\d (\d+)~', $head, $status) || !is_array($fields)) {
            throw $this->failed('the answer is not one of signalbox; check that this is its HTTP listener');
        }
        $retryAfter = preg_match('/^Retry-After:\s*(\d+)/mi', $head, $seconds) ? min((int) $seconds[1], 5) : 0;
        $answer = new Answer((int) $status[1], $this->sent, $fields, $retryAfter);
        if ($answer->status === 408 || $answer->status >= 500) {
            throw $this->failed("{$answer->code()}: {$answer->message()}", $answer);
        }
        return $answer;
    }

    /** Begins to connect to the next address. */
    private function connect(): void
    {
        $parts = parse_url($this->url);
        $isSecure = $parts['scheme'] === 'https';
        $isAddress = $parts['host'][0] === '[' || filter_var($parts['host'], FILTER_VALIDATE_IP) !== false;
        // A stream that does not wait takes only one address of a name.
        $this->addresses ??= [$parts['host'], ...($isAddress ? [] : (gethostbynamel($parts['host']) ?: []))];
        $context = stream_context_create(['ssl' => $this->tls + ['peer_name' => trim($parts['host'], '[]')]]);
        $flags = STREAM_CLIENT_CONNECT | STREAM_CLIENT_ASYNC_CONNECT;
        while (($address = array_shift($this->addresses)) !== null) {
            $target = "tcp://$address:" . ($parts['port'] ?? ($isSecure ? 443 : 80));
            $stream = $this->quietly(fn () => stream_socket_client($target, flags: $flags, context: $context));
            if ($stream !== false) {
                stream_set_blocking($stream, false);
                [$this->stream, $this->isConnected, $this->isSecured, $this->rest] = [$stream, false, !$isSecure, $this->request];
                return;
            }
        }
        if (str_contains(implode($this->reasons), 'wrong version number')) { // OpenSSL's message.
            throw $this->failed('this port does not speak TLS; use http, or the HTTP listener of a server with TLS', isForeign: true);
        }
        $reason = $this->reasons[0] ?? 'no connection';
        throw $this->failed($this->isUntrusted() ? "the certificate of the server is not trusted ($reason)" : $reason);
    }

    /** Whether PHP has refused the certificate of the server, according to its message. */
    private function isUntrusted(): bool
    {
        return preg_match('/certificate verify failed|peer certificate|peer_fingerprint|verify peer/i', implode($this->reasons)) === 1;
    }

    /** The failure; without a reason, the server has not answered in time. */
    public function failed(string $reason = 'no answer in time', ?Answer $answer = null, bool $isForeign = false): Unanswered
    {
        $isFinal = $isForeign || $this->isUntrusted();
        $hint = isset(parse_url($this->url)['port']) ? '' : ' (the URL has no port; that of signalbox is usually 11217)';
        return new Unanswered("{$this->url}$hint: $reason", $answer, $this->isSent, $isFinal, $isForeign);
    }

    /** Calls a function of PHP, and keeps what it warns of. */
    private function quietly(\Closure $call): mixed
    {
        set_error_handler(function (int $_, string $text): bool {
            $this->reasons[] = $text;
            return true;
        });
        try {
            return $call();
        } finally {
            restore_error_handler();
        }
    }
}
