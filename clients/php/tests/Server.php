<?php

declare(strict_types=1);

namespace Signalbox\Tests;

/** A server that ends with its test. */
final class Server
{
    public readonly string $url;
    public readonly string $counter;
    /** @var resource */
    private $process;

    public function __construct(string ...$options)
    {
        $arguments = ['serve', '--counter-port', '0', '--semaphore-port', '0', '--http-port', '0', ...$options];
        $this->process = proc_open([self::binary(), ...$arguments], [2 => ['pipe', 'w']], $pipes);
        $said = '';
        while (($line = fgets($pipes[2])) !== false) {
            $said .= $line;
            if (preg_match('/signalbox is ready .* counter=(\S+) .* http=(\S+)/', $line, $ports)) {
                [$this->counter, $this->url] = [$ports[1], "http://$ports[2]"];
                return;
            }
        }
        throw new \RuntimeException("the server has not started: $said");
    }

    public static function binary(): string
    {
        return getenv('SIGNALBOX_BIN') ?: __DIR__ . '/../../../target/debug/signalbox';
    }

    public function signal(int $signal): void
    {
        $process = proc_get_status($this->process)['pid'];
        posix_kill($process, $signal);
        while ($signal === SIGSTOP && !preg_match('/\) T /', file_get_contents("/proc/$process/stat"))) {
            usleep(1000);
        }
    }

    /** Runs the command line against the server. */
    public function command(string ...$arguments): string
    {
        $process = proc_open([self::binary(), ...$arguments], [1 => ['pipe', 'w']], $pipes, null, ['SIGNALBOX_SERVER' => $this->counter] + getenv());
        $output = stream_get_contents($pipes[1]);
        if (proc_close($process) !== 0) {
            throw new \RuntimeException(implode(' ', $arguments) . " has failed: $output");
        }
        return trim($output);
    }

    public function sessions(): int
    {
        return json_decode(file_get_contents("{$this->url}/api/v1/sessions"))->total;
    }

    public function __destruct()
    {
        $this->signal(SIGKILL);
        proc_close($this->process);
    }
}
