<?php

declare(strict_types=1);

namespace Signalbox;

/**
 * Holds resources of a signalbox server: distributed locks, semaphores and concurrency limits. One client serves a whole program;
 * a forked process makes its own.
 */
final class Client
{
    private const DEFAULT_URL = 'http://127.0.0.1:11217';
    private const RELEASE_SECONDS = 5.0;
    private const CLEANUP_SECONDS = 2.0;

    private readonly Servers $servers;

    /** @var \Closure(string, array<string, mixed>): void */
    private readonly \Closure $onEvent;

    /**
     * Parameters that are not given (null) are read from the environment.
     *
     * @param list<string>|string|null $urls the HTTP listeners of a server, or of all nodes of a cluster, in a list or with commas
     *     between them; SIGNALBOX_URL
     * @param string|null $token proves what the client may do, without the white space around it; SIGNALBOX_TOKEN, unless there is
     *     a file
     * @param string|null $tokenFile has the token, and is read again for each connection and when a token is refused. A program
     *     gives this or $token; SIGNALBOX_TOKEN_FILE
     * @param bool|null $tokenOverPlain permits sending the token to other machines without TLS; SIGNALBOX_TOKEN_OVER_PLAIN=1
     * @param string|null $ca a file with the authorities that are trusted for https; empty: those of PHP; SIGNALBOX_CA
     * @param array<string, mixed> $tls further options of PHP's SSL context, such as local_cert
     * @param float $unreachableAfterSeconds how long an acquire tries to reach a server, also one that does not wait
     * @param (callable(string, array<string, mixed>): void)|null $onEvent is called with "waiting" (with "position"), "acquired",
     *     "renewed", "revoking", "lost" (with "reason") and "released", with "name" and, of a permit, "fence" and "time_left"
     * @throws Misuse if one of them is wrong, or a file has no token
     */
    public function __construct(
        array|string|null $urls = null,
        #[\SensitiveParameter] ?string $token = null,
        ?string $tokenFile = null,
        ?bool $tokenOverPlain = null,
        ?string $ca = null,
        array $tls = [],
        private readonly float $unreachableAfterSeconds = 10.0,
        ?callable $onEvent = null,
    ) {
        Rules::atLeast(0, $unreachableAfterSeconds, 'unreachableAfterSeconds');
        $urls ??= getenv('SIGNALBOX_URL') ?: self::DEFAULT_URL;
        if ($urls === []) {
            throw new Misuse('urls is empty; use the URL of each node, or null for SIGNALBOX_URL');
        }
        $token = Token::given($token, $tokenFile);
        $mayBePlain = $token->text() === '' || ($tokenOverPlain ?? getenv('SIGNALBOX_TOKEN_OVER_PLAIN') === '1');
        $urls = explode(',', implode(',', (array) $urls));
        $urls = array_map(fn (string $url): string => self::checked(trim($url), $mayBePlain), $urls);
        $ca ??= (string) getenv('SIGNALBOX_CA');
        if ($ca !== '' && @openssl_x509_read((string) @file_get_contents($ca)) === false) {
            throw new Misuse("the certificates of authorities cannot be read from the file \"$ca\"");
        }
        $this->servers = new Servers($urls, $token, $tls + ($ca === '' ? [] : ['cafile' => $ca]));
        $this->onEvent = $onEvent === null ? function (): void {
        } : \Closure::fromCallable($onEvent);
    }

    private static function checked(string $url, bool $mayBePlain): string
    {
        $url = preg_replace_callback('~^https?(?=://)~i', fn (array $scheme): string => strtolower($scheme[0]), $url);
        $parts = parse_url($url) ?: [];
        $wrong = match (true) {
            preg_match('/[^\x21-\x7e]/', $url) === 1 => 'it has a space, or another character that no URL has',
            preg_match('~^https?://~', $url) === 0 => 'begin it with http:// or https://',
            preg_match('/^(\[[0-9a-f:.]+]|[^][:]+)$/iD', $parts['host'] ?? '') === 0 => 'its host or its port is missing or wrong',
            ($parts['port'] ?? 1) === 0 => 'a port is 1 to 65535',
            isset($parts['user']) || isset($parts['query']) || isset($parts['fragment']) => 'it has no user, and nothing after ? or #',
            default => '',
        };
        if ($wrong !== '') {
            $shown = preg_replace('~^(.*//)?[^/]*@~s', '$1…@', $url); // Without a password.
            throw new Misuse("the URL \"$shown\" is wrong: $wrong; use one such as " . self::DEFAULT_URL);
        }
        $isLoopback = preg_match('/^(localhost|127(\.\d+){3}|\[::1\])$/', $parts['host']);
        if ($parts['scheme'] === 'http' && !$mayBePlain && !$isLoopback) {
            throw new Misuse("the token is not sent to \"$url\" without TLS, where others may read it; use https, or tokenOverPlain");
        }
        return rtrim($url, '/');
    }

    /**
     * Acquires resources of a name. Release the permit, and refresh it while you work (Permit::refresh), or use run().
     *
     * If an exception ends the wait, such as one of a signal's handler, nothing stays held. The first four parameters are those of a
     * Claim.
     *
     * @param list<Claim> $also further names, all or none of which are acquired
     * @param float|null $ttlSeconds how long the permit lasts after each refresh, 1 s or more; the server bounds it, by an hour unless
     *     it is configured (session.max_ttl); the server's default, usually 30 s
     * @param float $waitSeconds how long to wait in the queue; not at all unless given
     * @param int|null $queueMax do not wait if this many requests wait already
     * @param string $label up to 255 bytes that the server's listings show with the permit
     * @throws Busy|TimedOut|QueueFull|Lost|Unreachable|NotPermitted|Misuse
     */
    public function acquire(
        string $name,
        int $resources = 1,
        ?int $maximum = null,
        ?int $slot = null,
        array $also = [],
        ?float $ttlSeconds = null,
        float $waitSeconds = 0.0,
        ?int $queueMax = null,
        string $label = '',
    ): Permit {
        $claims = [new Claim($name, $resources, $maximum, $slot), ...array_values($also)];
        // Only a request of a single flight has another answer.
        return $this->request($claims, [], $ttlSeconds, $waitSeconds, $queueMax, $label);
    }

    /**
     * Acquires a name for a single flight, for programs that do not use share(). The program makes the result while it has the permit,
     * and ends with Permit::releaseDone(). null: another program has made the result while this one waited, and nothing is held.
     * The parameters are those of acquire().
     *
     * @throws Busy|TimedOut|QueueFull|Lost|Unreachable|NotPermitted|Misuse
     */
    public function acquireShared(
        string $name,
        ?float $ttlSeconds = null,
        float $waitSeconds = 0.0,
        ?int $queueMax = null,
        string $label = '',
    ): ?Permit {
        $claims = [new Claim($name, maximum: 1)];
        return $this->request($claims, ['share' => true], $ttlSeconds, $waitSeconds, $queueMax, $label);
    }

    /**
     * @param non-empty-list<Claim> $claims
     * @param array<string, mixed> $more further fields
     */
    private function request(array $claims, array $more, ?float $ttlSeconds, float $waitSeconds, ?int $queueMax, string $label): ?Permit
    {
        $name = $claims[0]->name;
        $requested = "acquire \"$name\"";
        self::check($claims, $requested);
        Rules::ttl($ttlSeconds, "cannot $requested: ttlSeconds");
        Rules::atLeast(0, $waitSeconds, "cannot $requested: waitSeconds");
        Rules::atLeast(0, $queueMax, "cannot $requested: queueMax");
        Rules::bytes(Rules::LABEL_BYTES_MAX, $label, "cannot $requested: label");
        $key = bin2hex(random_bytes(16));
        $milliseconds = fn (float $seconds): int => (int) min(ceil($seconds * 1000), 2 ** 32 - 1);
        $body = [
            'key' => $key,
            'claims' => array_map(fn (Claim $claim): array => $claim->body(), $claims),
            'wait_ms' => $milliseconds($waitSeconds),
        ] + $more + Claim::text('label', $label);
        $body += $ttlSeconds === null ? [] : ['ttl_ms' => $milliseconds($ttlSeconds)];
        $body += $queueMax === null ? [] : ['queue_max' => $queueMax];
        $mayArrive = true;
        try {
            $answer = $this->ask($name, $requested, $body, $waitSeconds, $ttlSeconds ?? 30.0, $mayArrive);
            if ($answer->status === 200 && $answer->body['state'] === 'done') {
                return null;
            }
            if ($answer->status === 200) {
                $names = array_map(fn (Claim $claim): string => $claim->name, $claims);
                $permit = new Permit($this, $this->servers, $this->onEvent, $names, $key, isset($more['share']), $answer);
                $mayArrive = false;
                return $permit;
            }
        } finally {
            if ($mayArrive) {
                $this->giveBack($key, self::CLEANUP_SECONDS);
            }
        }
        $hasSlot = array_filter($claims, fn (Claim $claim): bool => $claim->slot !== null) !== [];
        throw Failure::of($requested, $answer->code(), match (true) {
            $answer->code() === 'not_found' && $hasSlot
                => 'a slot is one of a declared semaphore; declare it with signalbox declare --slots',
            in_array($answer->code(), ['unauthorized', 'not_permitted'], true) && !$this->servers->hasToken()
                => 'the client has no token; give it one by tokenFile or SIGNALBOX_TOKEN_FILE',
            default => $answer->message(),
        });
    }

    /** @param array<mixed> $claims those of acquire() */
    private static function check(array $claims, string $requested): void
    {
        foreach ($claims as $claim) {
            if (!$claim instanceof Claim) {
                throw new Misuse("cannot $requested: also has something that is not a Claim; use such as new Claim('licence', maximum: 1)");
            }
        }
        $names = array_map(fn (Claim $claim): string => $claim->name, $claims);
        foreach (array_diff_key($names, array_unique($names, SORT_STRING)) as $twice) {
            throw new Misuse("cannot $requested: the name \"$twice\" is requested twice; use resources for the sum");
        }
        if (count($claims) > Rules::CLAIMS_MAX) {
            $most = Rules::CLAIMS_MAX;
            throw new Misuse("cannot $requested: more than $most names are requested; use $most or less");
        }
    }

    /**
     * Repeats a request until it is granted or refused.
     *
     * @param array<string, mixed> $body
     * @param bool $mayArrive becomes whether a request may be executed after this one has returned or thrown
     */
    private function ask(string $name, string $requested, array $body, float $waitSeconds, float $ttl, bool &$mayArrive): Answer
    {
        $park = min($ttl / 4, 20.0, $waitSeconds);
        // The first request has its answer at once, so that the program learns its position.
        [$begun, $poll, $pauses, $isOpen] = [Clock::now(), 0.0, new Pauses(), false];
        $answered = $begun;
        while (true) {
            try {
                $mayArrive = true; // If an exception of the program ends it.
                $answer = $this->servers->post('acquire', $body, $poll);
                $state = $answer->body['state'] ?? '';
                $isOpen = $isOpen || $answer->isOpen;
                if ($answer->status >= 400 || $state === 'done' || ($state === 'held' && Clock::now() + Clock::RESOLUTION < $answer->until($answer->body))) {
                    $mayArrive = $isOpen || $answer->status < 400;
                    return $answer;
                }
                if ($state !== 'queued') {
                    throw new Unanswered('the answer came too late, or is not one of signalbox');
                }
                [$answered, $poll, $isOpen] = [Clock::now(), $park, true];
                $pauses = new Pauses();
                $body = array_intersect_key($answer->body, ['place' => true]) + $body;
                ($this->onEvent)('waiting', ['name' => $name, 'position' => $answer->body['position'] ?? 0]);
                // The server's wait begins again after its restart.
                if ($answered - $begun > $waitSeconds + $this->unreachableAfterSeconds) {
                    throw Failure::of($requested, 'timed_out', '');
                }
            } catch (Unanswered $unanswered) {
                $mayArrive = $isOpen = $isOpen || $unanswered->isSent;
                if ($unanswered->isFinal || Clock::now() - $answered >= $this->unreachableAfterSeconds) {
                    throw self::unreachable($requested, $unanswered);
                }
                $poll = 0.0; // A server without room for a request that waits answers this one.
                usleep((int) ($pauses->next($unanswered) * 1e6));
            }
        }
    }

    private static function unreachable(string $requested, Unanswered $last): Failure
    {
        if ($last->answer?->code() === 'limit_reached') {
            return Failure::of($requested, 'limit_reached', $last->answer->message());
        }
        if ($last->isForeign) {
            return new Misuse("cannot $requested: {$last->getMessage()}", '', $last);
        }
        $what = $last->isFinal ? 'no server is trusted; check the URLs and the authorities of ca or SIGNALBOX_CA'
            : 'no server could answer; check the servers and the network';
        $message = "cannot $requested: $what (last attempt: {$last->getMessage()})";
        return new Unreachable($message, '', $last);
    }

    /**
     * Like acquire(), for a program that has something else to do if the resources are in use: then it returns null. It has the same
     * parameters.
     *
     * @throws Lost|Unreachable|NotPermitted|Misuse
     */
    public function tryAcquire(string $name, mixed ...$options): ?Permit
    {
        try {
            return $this->acquire($name, ...$options);
        } catch (Busy | TimedOut | QueueFull) {
            return null;
        }
    }

    /**
     * Acquires, calls $work with the permit, releases, and returns what $work has returned. The options are those of acquire(), by
     * their names. If the permit was lost before $work returned, it throws Lost.
     *
     * @template T
     * @param callable(Permit): T $work
     * @return T
     * @throws Busy|TimedOut|QueueFull|Lost|Unreachable|NotPermitted|Misuse
     */
    public function run(string $name, callable $work, mixed ...$options): mixed
    {
        $permit = $this->acquire($name, ...$options);
        $result = self::work($permit, $work);
        try {
            $permit->release();
        } catch (Unreachable) {
            // The work is done, and the lease ends by itself.
        }
        return $result;
    }

    /**
     * A single flight: of many programs that need the same result, one makes it, and the others wait for it. The options are those of
     * acquireShared(), by their names.
     *
     * @template T
     * @param callable(): ?T $find looks for the result; null: it is not there
     * @param callable(Permit): T $make makes the result, puts it where $find looks, and returns it; if it throws, another
     *     program makes the result
     * @return T
     * @throws Busy|TimedOut|QueueFull|Lost|Unreachable|NotPermitted|Misuse
     */
    public function share(string $name, callable $find, callable $make, mixed ...$options): mixed
    {
        while (($found = $find()) === null) {
            $permit = $this->acquireShared($name, ...$options);
            if ($permit === null) {
                continue;
            }
            // Another program may have made it between the two.
            $found = self::work($permit, fn (Permit $permit): mixed => $find() ?? $make($permit));
            try {
                $permit->releaseDone();
            } catch (Lost | Unreachable) {
                // The result is there, even if the permit was lost.
            }
            break;
        }
        return $found;
    }

    /**
     * Calls $work with the permit, and releases it if that throws.
     *
     * @template T
     * @param callable(Permit): T $work
     * @return T
     */
    private static function work(Permit $permit, callable $work): mixed
    {
        try {
            return $work($permit);
        } catch (\Throwable $thrown) {
            try {
                $permit->release();
            } catch (Failure) {
                // The exception of the work says more.
            }
            throw $thrown;
        }
    }

    /**
     * Releases a key, so that nothing is left of its request, even if that arrives later.
     *
     * @internal
     * @param bool $isDone the result of a single flight is there
     * @return string empty if a server has confirmed it, or else why none has
     */
    public function giveBack(string $key, float $seconds = self::RELEASE_SECONDS, bool $isDone = false): string
    {
        try {
            return $this->tryToGiveBack($key, $seconds, $isDone);
        } catch (\Throwable $thrown) { // By the handler of a signal.
            $this->tryToGiveBack($key, self::CLEANUP_SECONDS, $isDone);
            throw $thrown;
        }
    }

    /** One part of giveBack(). */
    private function tryToGiveBack(string $key, float $seconds, bool $isDone): string
    {
        $body = ['key' => $key] + ($isDone ? ['done' => true] : []);
        [$end, $pauses] = [Clock::now() + $seconds, new Pauses()];
        while (true) {
            try {
                $answer = $this->servers->post('release', $body, 0.0, min($seconds, Servers::ANSWER_SECONDS));
                return $answer->status === 200 ? '' : $answer->message();
            } catch (Unanswered $unanswered) {
                $pause = $pauses->next($unanswered);
                if ($unanswered->isFinal || Clock::now() + $pause > $end) {
                    return $unanswered->getMessage();
                }
                usleep((int) ($pause * 1e6));
            }
        }
    }
}
