<?php

declare(strict_types=1);

namespace Signalbox;

/** The base class of all exceptions of the client. */
abstract class Failure extends \RuntimeException
{
    /** @param string $reason the server's code (docs/http.md), such as "paused"; empty if no server refused the request */
    final public function __construct(string $message, public readonly string $reason = '', ?\Throwable $previous = null)
    {
        parent::__construct($message, 0, $previous);
    }

    /**
     * The failure for a refusal by the server.
     *
     * @internal
     */
    public static function of(string $requested, string $code, string $message): self
    {
        $class = match ($code) {
            'busy', 'paused', 'limit_reached' => Busy::class,
            'timed_out' => TimedOut::class,
            'queue_full' => QueueFull::class,
            'canceled', 'revoked', 'removed' => Lost::class,
            'unauthorized', 'not_permitted', 'too_many_wrong_tokens' => NotPermitted::class,
            default => Misuse::class,
        };
        $message = match ($code) {
            'busy' => 'it is in use; try again later, or wait with waitSeconds',
            'timed_out' => 'it was in use for as long as the request waited; try again later, or wait longer',
            'queue_full' => 'it is in use, and enough requests wait already; try again later',
            'canceled', 'revoked', 'removed' => self::why($code),
            default => $message,
        };
        return new $class("cannot $requested: $message", $code);
    }

    /**
     * Why a permit, or the place in the queue, is lost, in words; the reason itself if it is one of a later server.
     *
     * @internal
     */
    public static function why(string $reason): string
    {
        return match ($reason) {
            'expired' => 'expired, or the server was restarted without a data directory',
            'unreachable' => 'no server answered until its lease ended',
            'not_permitted' => 'the client may no longer acquire it',
            'revoked' => 'an administrator has revoked it',
            'removed' => 'an administrator has removed the semaphore',
            'canceled' => 'an administrator has canceled the request',
            default => $reason,
        };
    }
}

/** The resources are in use, the semaphore is paused, or the server has no room (limit_reached). Nothing is held. */
final class Busy extends Failure
{
}

/** The resources were not free within the time that the request waited. Nothing is held. */
final class TimedOut extends Failure
{
}

/** At least as many requests wait as queueMax permits. Nothing is held. */
final class QueueFull extends Failure
{
}

/**
 * The permit, or the place in the queue, is lost. Its reason is "expired", "revoked", "unreachable" (no server has answered until
 * its end), "not_permitted" (a server did not renew it until its end), "released" (by this program), or another code of the server.
 */
final class Lost extends Failure
{
}

/** No server could answer, or the certificates of all are not trusted. An acquire holds nothing. */
final class Unreachable extends Failure
{
}

/** The client has no right to acquire the name, or its token is not accepted. */
final class NotPermitted extends Failure
{
}

/**
 * The request or the configuration cannot succeed as it is, what listens at all URLs does not speak HTTP, or the permit belongs to
 * the parent of this process.
 */
final class Misuse extends Failure
{
}
