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

/** Acquires, and then executes the commands about the permit until there are no more. */
function keep(array $acquire, $commands): void
{
    $claims = array_map(
        fn (array $claim): Claim => new Claim($claim['name'], $claim['resources'] ?? 1, $claim['maximum'] ?? null),
        $acquire['claims'],
    );
    $permit = null;
    try {
        $times = ['ttlSeconds' => $acquire['ttl_ms'] / 1000, 'waitSeconds' => $acquire['wait_ms'] / 1000];
        $permit = isset($acquire['share']) ? (new Client())->acquireShared($claims[0]->name, ...$times) : (new Client())->acquire(
            $claims[0]->name,
            ...$times,
            resources: $claims[0]->resources,
            maximum: $claims[0]->maximum,
            also: array_slice($claims, 1),
        );
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

say(['driver' => 'php', 'capabilities' => ['share', 'tls', 'token']]);
$processes = [];
while (($line = fgets(STDIN)) !== false) {
    $command = json_decode($line, true);
    switch ($command['do']) {
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
