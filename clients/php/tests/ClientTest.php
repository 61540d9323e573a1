<?php

declare(strict_types=1);

namespace Signalbox\Tests;

use PHPUnit\Framework\TestCase;
use Signalbox\{Busy, Claim, Client, Failure, Lost, Misuse, NotPermitted, Permit, QueueFull, Servers, TimedOut, Unreachable};

final class ClientTest extends TestCase
{
    private const PATIENCE = 30;

    private Server $server;
    private Client $client;
    /** @var list<array{string, array<string, mixed>}> */
    private array $events = [];
    /** @var list<string> */
    private array $folders = [];
    /** @var list<int> */
    private array $processes = [];

    protected function setUp(): void
    {
        $this->server = new Server();
        $this->client = $this->client();
    }

    protected function tearDown(): void
    {
        foreach ($this->processes as $process) {
            posix_kill($process, SIGKILL);
            pcntl_waitpid($process, $status);
        }
        foreach ($this->folders as $folder) {
            array_map('unlink', glob("$folder/*"));
            rmdir($folder);
        }
    }

    /** A new folder for the test. */
    private function folder(): string
    {
        $this->folders[] = $folder = sys_get_temp_dir() . '/signalbox-' . bin2hex(random_bytes(8));
        mkdir($folder, 0700);
        return $folder;
    }

    private function client(mixed ...$options): Client
    {
        $onEvent = function (string $event, array $about): void {
            $this->events[] = [$event, $about];
        };
        return new Client(...$options + ['urls' => [$this->server->url], 'onEvent' => $onEvent]);
    }

    /** @param callable(): bool $is */
    private function eventually(string $what, callable $is): void
    {
        for ($end = time() + self::PATIENCE; !$is(); usleep(5000)) {
            if (time() > $end) {
                $this->fail("not in time: $what");
            }
        }
    }

    /**
     * @param class-string<Failure> $class
     * @param callable(): mixed $call
     */
    private function assertFails(string $class, callable $call, ?string $reason = null): void
    {
        try {
            $call();
        } catch (Failure $failure) {
            $this->assertInstanceOf($class, $failure, $failure->getMessage());
            $this->assertSame($reason ?? $failure->reason, $failure->reason);
            return;
        }
        $this->fail("no $class");
    }

    /** Refreshes a permit until that fails. */
    private function assertIsLost(string $reason, Permit $permit): void
    {
        for ($end = time() + self::PATIENCE; time() < $end; usleep(5000)) {
            try {
                $permit->refresh();
            } catch (Lost $lost) {
                $this->assertSame($reason, $lost->reason);
                return;
            }
        }
        $this->fail('the permit is not lost');
    }

    public function testAPermitIsHeldUntilItIsReleased(): void
    {
        $permit = $this->client->acquire('a', maximum: 1, label: 'job 7');
        $permit->check();
        $permit->refresh();
        $this->assertGreaterThan(0, $permit->timeLeft());
        $this->assertFails(Busy::class, fn () => $this->client->acquire('a', maximum: 1));
        $this->assertNull($this->client->tryAcquire('a', maximum: 1));
        $permit->release();
        $permit->release();
        $this->assertFails(Lost::class, fn () => $permit->check(), 'released');
        $this->assertFails(Lost::class, fn () => $permit->refresh(), 'released');
        $this->assertSame([0.0, 0], [$permit->timeLeft(), $this->server->sessions()]);
        $next = $this->client->tryAcquire('a', maximum: 1);
        $this->assertGreaterThan($permit->fence(), $next->fence());
        $this->assertSame(['acquired', 'released', 'acquired'], array_column($this->events, 0));
    }

    public function testFailuresAreDistinct(): void
    {
        $held = $this->client->acquire('a', maximum: 1);
        $again = fn (mixed ...$options) => fn () => $this->client->acquire('a', ...$options);
        $this->assertFails(TimedOut::class, $again(maximum: 1, waitSeconds: 0.001));
        $this->assertFails(QueueFull::class, $again(maximum: 1, waitSeconds: 3600.0, queueMax: 0));
        $this->assertFails(Misuse::class, $again());
        $this->server->command('declare', 'paused', '--capacity', '1');
        $this->server->command('pause', 'paused');
        $this->assertFails(Busy::class, fn () => $this->client->acquire('paused'), 'paused');
        $held->release();
    }

    /** @return array<string, array{array<string, mixed>}> */
    public static function wrongRequests(): array
    {
        $claim = ['also' => [new Claim('a')]];
        return [
            'an empty name' => [['name' => '']],
            'a long name' => [['name' => str_repeat('x', 65_536)]],
            'nothing' => [['resources' => 0]],
            'a maximum of nothing' => [['maximum' => 0]],
            'more than the maximum' => [['resources' => 2, 'maximum' => 1]],
            'a negative slot' => [['slot' => -1]],
            'several of one slot' => [['slot' => 1, 'resources' => 2]],
            'a name as a claim' => [['also' => ['x10']]],
            'a name twice' => [$claim],
            'many names' => [['also' => array_map(fn (int $number) => new Claim("b$number"), range(1, 64))]],
            'a short ttl' => [['ttlSeconds' => 0.999]],
            'a negative ttl' => [['ttlSeconds' => -1.0]],
            'a ttl that is not a number' => [['ttlSeconds' => NAN]],
            'a negative wait' => [['waitSeconds' => -1.0]],
            'a wait that is not a number' => [['waitSeconds' => NAN]],
            'a negative queue' => [['queueMax' => -1]],
            'a long label' => [['label' => str_repeat('x', 256)]],
        ];
    }

    /** @dataProvider wrongRequests */
    public function testARequestThatCannotBeMeantIsMisuse(array $options): void
    {
        $client = $this->client(urls: ['http://127.0.0.1:1'], unreachableAfterSeconds: 0.1);
        $this->assertFails(Misuse::class, fn () => $client->acquire(...$options + ['name' => 'a']), '');
    }

    public function testAnEndlessTimeIsTheLongestOne(): void
    {
        $permit = $this->client->acquire('a', maximum: 1, ttlSeconds: INF, waitSeconds: INF);
        $this->assertGreaterThan(3000, $permit->timeLeft());
        $permit->release();
    }

    public function testSeveralNamesAreAllGrantedOrNone(): void
    {
        $this->server->command('declare', 'gpu', '--capacity', '4', '--slots');
        $licence = $this->client->acquire('licence', maximum: 1);
        $both = fn () => $this->client->acquire('gpu', resources: 2, also: [new Claim('licence', maximum: 1)]);
        $this->assertFails(Busy::class, $both);
        $licence->release();
        $permit = $both();
        $this->assertCount(2, $permit->slots());
        $this->assertSame([$permit->slots(), [], []], [$permit->slots('gpu'), $permit->slots('licence'), $permit->slots('other')]);
        $permit->release();
        $this->assertSame([3], $this->client->acquire('gpu', slot: 3)->slots());
    }

    public function testNamesAreBytes(): void
    {
        $permit = $this->client->acquire("a\xff\0", maximum: 1, label: "\xfe");
        $this->assertFails(Busy::class, fn () => $this->client->acquire("a\xff\0", maximum: 1));
        $permit->release();
    }

    public function testRunReleasesWhateverTheWorkDoes(): void
    {
        $this->assertSame(7, $this->client->run('a', fn (Permit $permit): int => 7, maximum: 1));
        try {
            $this->client->run('a', fn () => throw new \DomainException('of the work'), maximum: 1);
            $this->fail('no exception');
        } catch (\DomainException $exception) {
            $this->assertSame('of the work', $exception->getMessage());
        }
        $revoke = function (Permit $permit): void {
            $this->server->command('revoke', '--grant', (string) $permit->fence(), '--grace', '0');
            $this->assertIsLost('revoked', $permit);
        };
        $this->assertFails(Lost::class, fn () => $this->client->run('a', $revoke, maximum: 1), 'revoked');
        $this->client->acquire('a', maximum: 1)->release();
    }

    public function testOfThoseThatNeedAResultOneMakesIt(): void
    {
        $made = $this->folder() . '/made';
        $find = fn (): ?string => is_file($made) ? file_get_contents($made) : null;
        $make = function (Permit $permit) use ($made): string {
            $this->eventually('the others wait', fn (): bool => $this->server->sessions() === 3);
            file_put_contents($made, getmypid(), FILE_APPEND);
            return (string) getmypid();
        };
        $children = array_map(function () use ($find, $make): int {
            if (($child = pcntl_fork()) === 0) {
                $client = new Client(urls: [$this->server->url]);
                $isMade = $client->share('a', $find, $make, waitSeconds: 3600.0) === $find();
                posix_kill(getmypid(), $isMade ? SIGKILL : SIGTERM); // Without the destructors of the tests.
            }
            return $child;
        }, range(1, 3));
        foreach ($children as $child) {
            pcntl_waitpid($child, $status);
            $this->assertSame(SIGKILL, pcntl_wtermsig($status));
        }
        $this->assertContains((int) $find(), $children, 'one of them has made it, once');
        $this->assertSame($find(), $this->client->share('a', $find, $make));
        $this->assertSame(0, $this->server->sessions());
    }

    public function testAFailureIsNoResult(): void
    {
        $nothing = fn () => null;
        try {
            $this->client->share('a', $nothing, fn () => throw new \DomainException('of the work'));
            $this->fail('no exception');
        } catch (\DomainException) {
            $this->assertSame('made', $this->client->share('a', $nothing, fn (): string => 'made'));
        }
        $held = $this->client->acquireShared('a');
        $this->assertFails(TimedOut::class, fn () => $this->client->share('a', $nothing, fn (): string => 'early', waitSeconds: 0.001));
        $held->releaseDone();
        $held->releaseDone();
        $this->assertSame(0, $this->server->sessions());
    }

    public function testOnlyASharedPermitIsReleasedAsDone(): void
    {
        $permit = $this->client->acquire('a', maximum: 1);
        $this->assertFails(Misuse::class, fn () => $permit->releaseDone());
        $permit->check();
        $permit->release();
    }

    public function testTheExampleOfACacheWorks(): void
    {
        $page = $this->folder() . '/page.html';
        $run = fn (): ?string => shell_exec("SIGNALBOX_URL={$this->server->url} php " . __DIR__ . "/../examples/cache.php $page");
        $first = $run();
        $this->assertSame([$first, $first], [$run(), file_get_contents($page)]);
    }

    public function testARefreshedPermitLastsForLongerThanItsTimeToLive(): void
    {
        $permit = $this->client->acquire('a', maximum: 1, ttlSeconds: 3.0);
        for ($end = hrtime(true) + 4e9; hrtime(true) < $end; usleep(1000)) {
            $permit->refresh();
        }
        $renewals = count(array_keys(array_column($this->events, 0), 'renewed', true));
        $this->assertLessThan(20, $renewals, 'not each call asks the server');
        $this->assertFails(Busy::class, fn () => $this->client->acquire('a', maximum: 1));
        $permit->release();
    }

    public function testTheClockGoesOnWithoutDescriptors(): void
    {
        $program = 'require $argv[1]; $permit = (new Signalbox\Client($argv[2]))->acquire("a", maximum: 1, ttlSeconds: 1.0);'
            . 'for ($open = []; ($file = @fopen("/dev/null", "r")) !== false; $open[] = $file); $permit->check(); sleep(2);'
            . 'try { $permit->check(); echo "held"; } catch (Signalbox\Lost) { echo "lost"; }';
        $arguments = array_map('escapeshellarg', [PHP_BINARY, '-r', $program, __DIR__ . '/bootstrap.php', $this->server->url]);
        $this->assertSame('lost', exec('ulimit -n 40; exec ' . implode(' ', $arguments)));
    }

    public function testAPermitThatIsNotRefreshedIsLostByTheClock(): void
    {
        $permit = $this->client->acquire('a', maximum: 1, ttlSeconds: 1.0);
        $this->eventually('the lease has ended', fn (): bool => $this->client->tryAcquire('a', maximum: 1) !== null);
        $this->assertFails(Lost::class, fn () => $permit->check(), 'expired');
        $this->assertFails(Lost::class, fn () => $permit->release(), 'expired');
    }

    public function testARevokedPermitIsValidForItsGracePeriod(): void
    {
        $permit = $this->client->acquire('a', maximum: 1, ttlSeconds: 10.0);
        $this->server->command('revoke', '--grant', (string) $permit->fence(), '--grace', '1h');
        $this->assertIsLost('revoked', $permit);
        $permit->check();
        $permit->release();
        $this->assertSame(['acquired', 'revoking', 'released'], array_values(array_diff(array_column($this->events, 0), ['renewed'])));
        $this->assertSame(0, $this->server->sessions());
    }

    /** @return array<string, array{int}> */
    public static function ends(): array
    {
        return ['killed' => [SIGKILL], 'stopped' => [SIGSTOP]];
    }

    /** @dataProvider ends */
    public function testADeadServerLosesPermitsInTime(int $signal): void
    {
        $client = $this->client(unreachableAfterSeconds: 0.1);
        $permit = $client->acquire('a', maximum: 1, ttlSeconds: 2.0);
        $this->server->signal($signal);
        $this->assertIsLost('unreachable', $permit);
        $this->assertFails(Unreachable::class, fn () => $client->acquire('a', maximum: 1));
    }

    public function testAReleaseWithoutAServerIsBounded(): void
    {
        $permit = $this->client->acquire('a', maximum: 1, ttlSeconds: 3600.0);
        $this->server->signal(SIGSTOP);
        $this->assertFails(Unreachable::class, fn () => $permit->release());
        $permit->release();
    }

    /** A signal's handler that throws ends the wait. */
    public function testAnAcquireThatIsEndedByAnExceptionLeavesNothingBehind(): void
    {
        $held = $this->client->acquire('a', maximum: 1);
        pcntl_async_signals(true);
        pcntl_signal(SIGALRM, fn () => throw new \DomainException('of the handler'));
        pcntl_alarm(1);
        $begun = hrtime(true);
        try {
            $this->client->acquire('a', maximum: 1, waitSeconds: 3600.0, ttlSeconds: 3600.0);
            $this->fail('no exception');
        } catch (\DomainException) {
            $this->assertLessThan(20e9, hrtime(true) - $begun, 'the handler does not run only after a request, which waits for 20 s');
            $this->assertSame(1, $this->server->sessions(), 'that of the holder');
        } finally {
            pcntl_signal(SIGALRM, SIG_DFL);
        }
        $held->release();
    }

    public function testAReleaseThatIsEndedByAnExceptionReleases(): void
    {
        $listener = stream_socket_server('tcp://127.0.0.1:0');
        [$parent, $child] = [getmypid(), pcntl_fork()];
        if ($child === 0) {
            for ($releases = 0; $releases < 2 && ($connection = stream_socket_accept($listener, 5)) !== false; fclose($connection)) {
                $isRelease = str_contains(fread($connection, 1 << 16), '/release ');
                $releases += (int) $isRelease;
                if ($isRelease && $releases === 1) {
                    posix_kill($parent, SIGUSR1);
                    sleep(1); // It is not answered.
                    continue;
                }
                $body = $isRelease ? '{}' : '{"state": "held", "valid_ms": 9000, "ttl_ms": 10000, "grant": "1", "slots": []}';
                fwrite($connection, 'HTTP/1.1 200 OK' . "\r\nConnection: close\r\nContent-Length: " . strlen($body) . "\r\n\r\n$body");
            }
            posix_kill(getmypid(), $releases === 2 ? SIGKILL : SIGTERM);
        }
        $permit = $this->client(urls: 'http://' . stream_socket_get_name($listener, false))->acquire('a', maximum: 1);
        pcntl_async_signals(true);
        pcntl_signal(SIGUSR1, fn () => throw new \DomainException('of the handler'));
        try {
            $permit->release();
            $this->fail('no exception');
        } catch (\DomainException) {
            pcntl_waitpid($child, $status);
            $this->assertSame(SIGKILL, pcntl_wtermsig($status), 'it is released again');
        } finally {
            pcntl_signal(SIGUSR1, SIG_DFL);
        }
    }

    public function testAForkHasNoPermit(): void
    {
        $permit = $this->client->acquire('a', maximum: 1);
        $child = pcntl_fork();
        if ($child === 0) {
            $refused = 0;
            foreach ([$permit->check(...), $permit->refresh(...), $permit->release(...), fn () => $this->client->acquire('b', maximum: 1)] as $call) {
                try {
                    $call();
                } catch (Misuse) {
                    $refused++;
                }
            }
            posix_kill(getmypid(), $refused === 4 ? SIGKILL : SIGTERM); // Without the destructors of the tests.
        }
        pcntl_waitpid($child, $status);
        $this->assertSame(SIGKILL, pcntl_wtermsig($status));
        $permit->release();
    }

    /** @return array{resource, string} a listener whose connections are never answered, and its address */
    private static function silent(): array
    {
        $listener = stream_socket_server('tcp://127.0.0.1:0');
        return [$listener, stream_socket_get_name($listener, false)];
    }

    /** A server that gives its first request this answer, and does not answer others. */
    private function answering(string $answer): string
    {
        [$listener, $address] = self::silent();
        $this->processes[] = $process = pcntl_fork();
        if ($process === 0) {
            $connection = stream_socket_accept($listener);
            fread($connection, 8192);
            fwrite($connection, $answer);
            while (true) {
                sleep(self::PATIENCE); // Until the test ends it.
            }
        }
        return "http://$address";
    }

    public function testARefreshDoesNotWaitAfterTheEndOfThePermit(): void
    {
        $held = '{"state": "held", "ttl_ms": 20000, "valid_ms": 2500, "grant": "1", "slots": [[]]}';
        $url = $this->answering("HTTP/1.1 200 OK\r\nContent-Length: " . strlen($held) . "\r\n\r\n$held");
        $permit = $this->client(urls: [$url, 'http://127.0.0.1:1'])->acquire('a', maximum: 1);
        $this->eventually('the permit is about to end', fn (): bool => $permit->timeLeft() < 0.2);
        $begun = hrtime(true);
        $this->assertFails(Lost::class, fn () => $permit->refresh(), 'unreachable');
        $this->assertLessThan(Servers::ANSWER_SECONDS * 1e9, hrtime(true) - $begun);
    }

    public function testServersAreAskedBesideEachOther(): void
    {
        [$listener, $silent] = self::silent();
        // One after the other, those that do not answer take longer than the test waits.
        $urls = ['http://127.0.0.1:1', ...array_fill(0, self::PATIENCE, "http://$silent"), $this->server->url];
        $end = time() + self::PATIENCE;
        $this->client(urls: $urls)->acquire('a', maximum: 1)->release();
        $this->assertLessThan($end, time());
        $this->assertSame(0, $this->server->sessions());
    }

    public function testARequestThatArrivesAfterAnotherServerHasAnsweredGetsNothing(): void
    {
        [$listener, $silent] = self::silent();
        $held = $this->client->acquire('a', maximum: 1);
        $this->assertNull($this->client(urls: ["http://$silent", $this->server->url])->tryAcquire('a', maximum: 1));
        $held->release();
        $late = stream_socket_client('tcp' . substr($this->server->url, 4));
        fwrite($late, fread(stream_socket_accept($listener), 8192));
        $this->assertStringContainsString(' 410 ', fgets($late));
        $this->assertSame(0, $this->server->sessions());
    }

    /** @dataProvider ends */
    public function testTheOtherServersAreAskedIfTheOneThatAnsweredLastDoesNot(int $signal): void
    {
        $other = new Server();
        $client = $this->client(urls: [$other->url, $this->server->url]);
        $other->signal(SIGSTOP);
        $client->acquire('a', maximum: 1)->release();
        $other->signal(SIGCONT);
        $this->server->signal($signal);
        $client->acquire('b', maximum: 1);
        $this->assertFails(Busy::class, fn () => $this->client(urls: [$other->url])->acquire('b', maximum: 1));
    }

    public function testATokenIsReadAgain(): void
    {
        $folder = $this->folder();
        [$tokens, $file, $config] = ["$folder/tokens.toml", "$folder/token", "$folder/signalbox.toml"];
        $token = fn (string ...$arguments): string => $this->server->command('token', ...$arguments, ...['--file', $tokens]);
        file_put_contents($file, $token('create', 'first', '--rights', 'acquire'));
        file_put_contents($config, "[access]\ntokens = \"$tokens\"\nnetworks = [\"127.0.0.0/8 none\"]\n");
        $this->server = new Server('--config', $config);
        $client = $this->client(tokenFile: $file);
        $permit = $client->acquire('a', maximum: 1, ttlSeconds: 6.0);
        file_put_contents($file, $token('create', 'second', '--rights', 'acquire'));
        $token('revoke', 'first');
        $this->server->signal(SIGHUP);
        for ($end = hrtime(true) + 7e9; hrtime(true) < $end; usleep(10_000)) {
            $permit->refresh();
        }
        $token('revoke', 'second');
        $this->server->signal(SIGHUP);
        $this->assertIsLost('not_permitted', $permit);
        $this->assertFails(NotPermitted::class, fn () => $client->acquire('b', maximum: 1));
        $this->assertFails(NotPermitted::class, fn () => $this->client()->acquire('b', maximum: 1));
    }

    /** Makes a certificate that has signed itself, and returns the files of it and of its key. */
    private function certificate(string $folder, string $subject): array
    {
        file_put_contents("$folder/openssl.cnf", "[req]\ndistinguished_name = dn\n[dn]\n[v3]\nsubjectAltName = $subject\n");
        $options = ['config' => "$folder/openssl.cnf", 'x509_extensions' => 'v3', 'private_key_bits' => 2048];
        $key = openssl_pkey_new($options);
        $certificate = openssl_csr_sign(openssl_csr_new(['CN' => 'test'], $key, $options), null, $key, 1, $options);
        openssl_x509_export_to_file($certificate, "$folder/certificate.pem");
        openssl_pkey_export_to_file($key, "$folder/key.pem");
        return ["$folder/certificate.pem", "$folder/key.pem"];
    }

    /** @return array{string, Server, string} the file of a new certificate, a server that has it, and its URL */
    private function secured(string $subject = 'IP:127.0.0.1'): array
    {
        $folder = $this->folder();
        [$certificate, $key] = $this->certificate($folder, $subject);
        file_put_contents("$folder/signalbox.toml", "[tls]\ncert = \"$certificate\"\nkey = \"$key\"\n");
        $server = new Server('--config', "$folder/signalbox.toml");
        return [$certificate, $server, str_replace('http:', 'https:', $server->url)];
    }

    public function testTheServerIsVerifiedOverTls(): void
    {
        [$certificate, $this->server, $url] = $this->secured();
        $this->client(urls: [$url], ca: $certificate)->acquire('a', maximum: 1)->release();
        [, $other, $untrusted] = $this->secured();
        $client = $this->client(urls: [$untrusted], ca: $certificate, unreachableAfterSeconds: 3600.0);
        $this->assertFails(Unreachable::class, fn () => $client->acquire('a', maximum: 1));
        [$misnamed, $named, $elsewhere] = $this->secured('IP:192.0.2.1');
        $client = $this->client(urls: [$elsewhere, "$elsewhere/b"], ca: $misnamed, unreachableAfterSeconds: 3600.0);
        $this->assertFails(Unreachable::class, fn () => $client->acquire('a', maximum: 1));
        [$listener, $silent] = self::silent();
        $urls = ["https://$silent", 'https://127.0.0.1:1', $untrusted, $url];
        $this->client(urls: $urls, ca: $certificate)->acquire('a', maximum: 1);
        $this->assertSame([1, 0], [$this->server->sessions(), $other->sessions()]);
    }

    public function testAServerWithoutRoomIsNotUnreachable(): void
    {
        file_put_contents($config = $this->folder() . '/signalbox.toml', "[session]\nmax_sessions = 1\n");
        $this->server = new Server('--config', $config);
        $held = $this->client()->acquire('a', maximum: 1);
        foreach ([[$this->server->url], ['http://127.0.0.1:1', $this->server->url]] as $urls) {
            $client = $this->client(urls: $urls, unreachableAfterSeconds: 1.0);
            $this->assertFails(Busy::class, fn () => $client->acquire('b', maximum: 1), 'limit_reached');
        }
        $held->release();
    }

    public function testAPortOfAnotherProtocolIsMisuseAtOnce(): void
    {
        $plain = substr($this->server->url, strlen('http://'));
        $counters = "http://{$this->server->counter}";
        foreach ([[$counters], ["https://$plain"], ["https://$plain", $counters]] as $urls) {
            $client = $this->client(urls: $urls, unreachableAfterSeconds: 3600.0);
            $this->assertFails(Misuse::class, fn () => $client->acquire('a', maximum: 1));
        }
        $client = $this->client(urls: [$counters, 'http://127.0.0.1:1'], unreachableAfterSeconds: 0.1);
        $this->assertFails(Unreachable::class, fn () => $client->acquire('a', maximum: 1));
        $this->client(urls: [$counters, $this->server->url])->acquire('a', maximum: 1)->release();
    }

    /** @return array<string, array{string}> */
    public static function otherAnswers(): array
    {
        $answers = ['H', "HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n<html>"];
        return array_combine($answers, array_map(fn (string $answer): array => [$answer], $answers));
    }

    /** @dataProvider otherAnswers */
    public function testAnAnswerThatMayBecomeOneOfAServerIsNotMisuse(string $answer): void
    {
        $client = $this->client(urls: [$this->answering($answer)], unreachableAfterSeconds: 0.1);
        $this->assertFails(Unreachable::class, fn () => $client->acquire('a', maximum: 1));
    }

    public function testAProgramWithoutAServerDoesNotWaitForLong(): void
    {
        $begun = hrtime(true);
        $client = $this->client(urls: ['http://127.0.0.1:1'], unreachableAfterSeconds: 0.1);
        $this->assertFails(Unreachable::class, fn () => $client->acquire('a', maximum: 1, waitSeconds: 3600.0));
        $this->assertLessThan(2e9, hrtime(true) - $begun, 'nothing has to be given back');
    }

    public function testAnExceptionOfTheEventsLeavesNothingBehind(): void
    {
        $client = $this->client(onEvent: fn () => throw new \DomainException('of the program'));
        try {
            $client->acquire('a', maximum: 1);
            $this->fail('no exception');
        } catch (\DomainException) {
            $this->assertSame(0, $this->server->sessions());
        }
    }

    public function testTheConfigurationIsChecked(): void
    {
        $empty = $this->folder() . '/token';
        touch($empty);
        $wrong = [
            ['urls' => []],
            ['urls' => 'http://127.0.0.1:11217,'],
            ['urls' => ['http://192.0.2.1:11217'], 'token' => 'secret'],
            ['urls' => ['http://127.0.0.1:11217,http://192.0.2.1:11217'], 'token' => 'secret'],
            ['token' => ''],
            ['token' => "\n"],
            ['token' => "a\r\nX-Injected: 1"],
            ['token' => 'é'],
            ['token' => 'secret', 'tokenFile' => $empty],
            ['tokenFile' => $empty],
            ['tokenFile' => ''],
            ['tokenFile' => "a\0b"],
            ['tokenFile' => '/does/not/exist'],
            ['ca' => '/does/not/exist'],
            ['ca' => __FILE__],
            ['unreachableAfterSeconds' => -1.0],
            ['unreachableAfterSeconds' => NAN],
        ];
        foreach ($wrong as $options) {
            $this->assertFails(Misuse::class, fn () => new Client(...$options));
        }
        new Client(urls: ['http://[::1]:11217', 'https://lock.example.org/path/'], token: 'secret');
        new Client(urls: 'http://a.example.org:1, http://b.example.org:1');
        $this->client(urls: str_replace('http:', 'HTTP:', $this->server->url))->acquire('a', maximum: 1)->release();
    }

    /** @return array<string, array{string}> */
    public static function wrongUrls(): array
    {
        $urls = [
            '', 'localhost', '127.0.0.1:18117', 'tcp://127.0.0.1:18117', 'lock.example.org:11217', 'ftp://lock.example.org', 'http://',
            'http://:1', 'http://::1', 'http://a:0', 'http://a:65536', 'http://a/?b', 'http://a#b', "http://a/\r\nX-Injected: 1", 'http://é',
        ];
        return array_combine($urls, array_map(fn (string $url): array => [$url], $urls));
    }

    /** @dataProvider wrongUrls */
    public function testAWrongUrlIsShown(string $url): void
    {
        $this->expectException(Misuse::class);
        $this->expectExceptionMessage("\"$url\"");
        new Client(urls: [$url]);
    }

    public function testAPathThatTheServerDoesNotHaveIsShown(): void
    {
        $this->expectException(Misuse::class);
        $this->expectExceptionMessage('/elsewhere');
        $this->client(urls: "{$this->server->url}/elsewhere")->acquire('a', maximum: 1);
    }

    /** A proxy may write headers so. */
    public function testAHeaderNeedsNoSpace(): void
    {
        $listener = stream_socket_server('tcp://127.0.0.1:0');
        $child = pcntl_fork();
        if ($child === 0) {
            while (($connection = stream_socket_accept($listener, self::PATIENCE)) !== false) {
                fread($connection, 1 << 16);
                fwrite($connection, "HTTP/1.1 409 Conflict\r\ncontent-length:27\r\n\r\n" . '{"error": {"code": "busy"}}');
                fclose($connection);
            }
            posix_kill(getmypid(), SIGKILL);
        }
        $this->processes[] = $child;
        $url = 'http://' . stream_socket_get_name($listener, false);
        $this->assertNull($this->client(urls: $url, unreachableAfterSeconds: 1.0)->tryAcquire('a', maximum: 1));
    }

    public function testAPasswordIsNotShown(): void
    {
        try {
            new Client(urls: ['http://user:secret@lock.example.org']);
            $this->fail('no exception');
        } catch (Misuse $misuse) {
            $this->assertStringNotContainsString('secret', $misuse->getMessage());
        }
    }

    /** Replaces the server by one that grants nothing without a token, and returns one. */
    private function token(): string
    {
        $folder = $this->folder();
        [$tokens, $config] = ["$folder/tokens.toml", "$folder/signalbox.toml"];
        $token = $this->server->command('token', 'create', 'first', '--rights', 'acquire', '--file', $tokens);
        file_put_contents($config, "[access]\ntokens = \"$tokens\"\nnetworks = [\"127.0.0.0/8 none\"]\n");
        $this->server = new Server('--config', $config);
        return $token;
    }

    public function testATokenIsTrimmed(): void
    {
        [$token, $file] = [$this->token(), $this->folder() . '/token'];
        file_put_contents($file, " $token\r\n");
        $this->client(token: "$token\n")->acquire('a', maximum: 1)->release();
        $this->client(tokenFile: $file)->acquire('a', maximum: 1)->release();
        putenv("SIGNALBOX_TOKEN=$token\n");
        try {
            $this->client()->acquire('a', maximum: 1)->release();
        } finally {
            putenv('SIGNALBOX_TOKEN');
        }
        $this->assertFails(NotPermitted::class, fn () => $this->client()->acquire('a', maximum: 1));
    }

    public function testWhatTheProgramGivesWinsOverTheEnvironment(): void
    {
        $token = $this->token();
        putenv('SIGNALBOX_TOKEN_FILE=/does/not/exist');
        putenv('SIGNALBOX_TOKEN_OVER_PLAIN=1');
        try {
            $this->client(token: $token)->acquire('a', maximum: 1)->release();
            $plain = ['urls' => ['http://192.0.2.1:11217'], 'token' => 'secret'];
            $this->assertFails(Misuse::class, fn () => new Client(...$plain, tokenOverPlain: false));
            new Client(...$plain);
        } finally {
            putenv('SIGNALBOX_TOKEN_FILE');
            putenv('SIGNALBOX_TOKEN_OVER_PLAIN');
        }
    }

    public function testTheEnvironmentIsRead(): void
    {
        // A name has several addresses.
        putenv('SIGNALBOX_URL=http://127.0.0.1:1, ' . str_replace('127.0.0.1', 'localhost', $this->server->url));
        try {
            (new Client())->acquire('a', maximum: 1)->release();
        } finally {
            putenv('SIGNALBOX_URL');
        }
        $this->assertSame(0, $this->server->sessions());
    }
}
