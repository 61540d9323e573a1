<?php

declare(strict_types=1);

namespace Signalbox\Tests;

use PHPUnit\Framework\TestCase;
use Signalbox\Client;
use Signalbox\Symfony\SignalboxStore;
use Symfony\Component\Lock\Exception\{InvalidArgumentException, InvalidTtlException, LockAcquiringException, LockConflictedException, LockReleasingException};
use Symfony\Component\Lock\LockFactory;

final class SymfonyTest extends TestCase
{
    private Server $server;

    protected function setUp(): void
    {
        if (stream_resolve_include_path('Symfony/Component/Lock/autoload.php') === false) {
            $this->markTestSkipped('symfony/lock is not installed (Debian: php-symfony-lock)');
        }
        require_once 'Symfony/Component/Lock/autoload.php';
        require_once __DIR__ . '/../src/Symfony/SignalboxStore.php';
        $this->server = new Server();
    }

    private function factory(mixed ...$options): LockFactory
    {
        return new LockFactory(new SignalboxStore(new Client(urls: [$this->server->url]), ...$options));
    }

    public function testALockIsHeldUntilItIsReleased(): void
    {
        $lock = $this->factory()->createLock('invoice');
        $other = $this->factory()->createLock('invoice');
        $this->assertTrue($lock->acquire());
        $this->assertTrue($lock->acquire(), 'it may be acquired again');
        $this->assertTrue($lock->isAcquired());
        $this->assertGreaterThan(200, $lock->getRemainingLifetime());
        $this->assertFalse($other->acquire());
        $this->assertFalse($other->isAcquired());
        $lock->refresh();
        $lock->release();
        $this->assertFalse($lock->isAcquired());
        $this->assertTrue($other->acquire(true));
        unset($other); // Releases by itself.
        $this->assertSame(0, $this->server->sessions());
    }

    public function testALockThatBlocksWaitsInTheQueue(): void
    {
        $lock = $this->factory()->createLock('invoice');
        $lock->acquire();
        $child = pcntl_fork();
        if ($child === 0) {
            $isAcquired = $this->factory()->createLock('invoice', 300, false)->acquire(true);
            posix_kill(getmypid(), $isAcquired ? SIGKILL : SIGTERM); // Without the destructors of the tests.
        }
        for ($end = time() + 30; time() < $end && $this->server->sessions() < 2; usleep(5000)) {
        }
        $this->assertSame(2, $this->server->sessions(), 'one holds, and one waits');
        $lock->release();
        pcntl_waitpid($child, $status);
        $this->assertSame(SIGKILL, pcntl_wtermsig($status));
    }

    public function testSeveralMayHoldALockWithALargerMaximum(): void
    {
        [$first, $second, $third] = array_map(fn () => $this->factory(maximum: 2)->createLock('pool'), range(1, 3));
        $this->assertSame([true, true, false], [$first->acquire(), $second->acquire(), $third->acquire()]);
    }

    public function testARevokedLockIsLost(): void
    {
        $lock = $this->factory(ttlSeconds: 1.5)->createLock('invoice', 1.5);
        $lock->acquire();
        $sessions = json_decode(file_get_contents("{$this->server->url}/api/v1/sessions"));
        $this->server->command('revoke', '--session', $sessions->items[0]->session, '--grace', '0');
        $this->expectException(LockConflictedException::class);
        for ($end = time() + 30; time() < $end; usleep(5000)) {
            $lock->refresh();
        }
    }

    public function testTheTimeToLiveIsThatOfTheStore(): void
    {
        $lock = $this->factory(ttlSeconds: 20.0)->createLock('invoice');
        try {
            $lock->acquire();
            $this->fail('it lasts for 20 s, and not for 300');
        } catch (LockAcquiringException $exception) {
            $this->assertInstanceOf(InvalidTtlException::class, $exception->getPrevious()->getPrevious() ?? $exception->getPrevious());
        }
    }

    /** @return array<string, array{class-string, array<string, mixed>}> */
    public static function wrongOptions(): array
    {
        return [
            'negative' => [InvalidTtlException::class, ['ttlSeconds' => -1.0]],
            'short' => [InvalidTtlException::class, ['ttlSeconds' => 0.5]],
            'NAN' => [InvalidTtlException::class, ['ttlSeconds' => NAN]],
            'none' => [InvalidArgumentException::class, ['maximum' => 0]],
        ];
    }

    /**
     * @dataProvider wrongOptions
     * @param class-string<\Throwable> $class
     */
    public function testAStoreThatCannotBeMeantIsNotMade(string $class, array $options): void
    {
        $this->expectException($class);
        new SignalboxStore(new Client(), ...$options);
    }

    public function testAServerThatIsGoneIsNotAConflict(): void
    {
        $client = new Client(urls: [$this->server->url], unreachableAfterSeconds: 0.1);
        $factory = new LockFactory(new SignalboxStore($client));
        $held = $factory->createLock('invoice', 300, false);
        $held->acquire();
        $this->server->signal(SIGKILL);
        try {
            $factory->createLock('other')->acquire();
            $this->fail('no exception');
        } catch (LockAcquiringException) {
            $this->expectException(LockReleasingException::class);
            $held->release();
        }
    }
}
