<?php

/**
 * Runs the client for the conformance suite (conformance/README.md): it passes commands to the client and reports what the client
 * says. PHP has no threads, so each acquire has a process of its own, which keeps the permit and gets the commands about it. It
 * refreshes the permit twice a second.
 */

declare(strict_types=1);

use Signalbox\{Busy, Claim, Client, Failure, Lost, NotPermitted, Permit, QueueFull, TimedOut, Unreachable};

foreach (glob(__DIR__ . '/src/*.php') as $file) {
    require $file;
}

function say(array $line): void
{
    fwrite(STDOUT, json_encode($line) . "\n");
}

function failure(Failure $failure): string
{
    return match ($failure::class) {
        Busy::class => 'busy',
        TimedOut::class => 'timed_out',
        QueueFull::class => 'queue_full',
        Lost::class => 'lost',
        Unreachable::class => 'unreachable',
        NotPermitted::class => 'not_permitted',
        default => 'misuse',
    };
}

function belief(?Permit $permit): array
{
    try {
        $permit?->check();
        return ['held' => $permit !== null, 'left_ms' => (int) ($permit?->timeLeft() * 1000)];
    } catch (Failure) {
        return ['held' => false];
    }
}

/** @return list<Claim> */
function claims(array $command): array
{
    return array_map(
        fn (array $claim): Claim => new Claim($claim['name'], $claim['resources'] ?? 1, $claim['maximum'] ?? null),
        $command['claims'],
    );
}

function acquire(Client $client, array $command): ?Permit
{
    $claims = claims($command);
    $isTimed = isset($command['ttl_ms']);
    $times = $isTimed ? ['ttlSeconds' => $command['ttl_ms'] / 1000, 'waitSeconds' => $command['wait_ms'] / 1000] : [];
    return isset($command['share']) ? $client->acquireShared($claims[0]->name, ...$times) : $client->acquire(
        $claims[0]->name,
        ...$times,
        resources: $claims[0]->resources,
        maximum: $claims[0]->maximum,
        also: array_slice($claims, 1),
    );
}

/** Acquires, and then executes the commands about the permit until there are no more. */
function keep(array $acquire, $commands): void
{
    $claims = claims($acquire);
    $permit = null;
    try {
        $permit = acquire(new Client(), $acquire);
        $slots = array_filter(array_map(fn (Claim $claim): array => $permit?->slots($claim->name) ?? [], $claims));
        $held = ['fence' => (string) $permit?->fence(), 'slots' => $slots] + belief($permit);
        say(['id' => $acquire['id']] + ($permit === null ? ['done' => true] : $held));
    } catch (Failure $failure) {
        say(['id' => $acquire['id'], 'failure' => failure($failure)]);
    }
    $refreshed = hrtime(true);
    while (true) {
        [$read, $none] = [[$commands], []];
        if (stream_select($read, $none, $none, 0, 100_000) > 0) {
            if (($line = fgets($commands)) === false) {
                return;
            }
            execute(json_decode($line, true), $permit);
            fwrite($commands, "\n");
        }
        if (hrtime(true) > $refreshed + 5e8) {
            try {
                $permit?->refresh();
            } catch (Failure) {
                // The next check says it.
            }
            $refreshed = hrtime(true);
        }
    }
}

function execute(array $command, ?Permit $permit): void
{
    if (isset($command['stop'])) {
        posix_kill(0, SIGSTOP);
    }
    try {
        match (true) {
            isset($command['done']) => $permit?->releaseDone(),
            $command['do'] === 'release' => $permit?->release(),
            default => null,
        };
    } catch (Failure) {
        // The next check says it.
    }
    say(['id' => $command['id']] + ($command['do'] === 'check' ? belief($permit) : []));
}

/** Acquires and releases one after the other, or keeps what it acquires; the times in microseconds. */
function pairs(array $command): array
{
    static $client = null;
    static $kept = [];
    $client ??= new Client();
    $times = [];
    for ($count = $command['count']; $count > 0; $count--) {
        $began = hrtime(true);
        $permit = acquire($client, $command);
        if ($command['keep']) {
            $kept[] = $permit;
        } else {
            $permit->release();
        }
        $times[] = intdiv(hrtime(true) - $began, 1000);
    }
    return $times;
}

say(['driver' => 'php', 'capabilities' => ['defaults', 'pairs', 'share', 'tls', 'token']]);
$processes = [];
while (($line = fgets(STDIN)) !== false) {
    $command = json_decode($line, true);
    switch ($command['do']) {
        case 'pairs':
            say(['id' => $command['id'], 'times_us' => pairs($command)]);
            break;
        case 'acquire':
            [$own, $other] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
            if (pcntl_fork() === 0) {
                fclose($own);
                array_map('fclose', $processes);
                keep($command, $other);
                exit;
            }
            fclose($other);
            $processes[$command['permit']] = $own;
            break;
        case 'check':
        case 'release':
            fwrite($processes[$command['permit']], $line);
            fgets($processes[$command['permit']]); // One command after the other.
            break;
        case 'exit':
            exit;
    }
}
