<?php

declare(strict_types=1);

namespace Signalbox;

/**
 * The token that the client sends; empty: none.
 *
 * @internal
 */
final class Token
{
    /** @param string $file is read again; empty: the token does not change */
    private function __construct(#[\SensitiveParameter] private string $text, private readonly string $file = '')
    {
    }

    /**
     * A token that the program gives takes precedence over the environment, in which a file comes before a token.
     *
     * @throws Misuse if it cannot be read, or is not a token
     */
    public static function given(#[\SensitiveParameter] ?string $text, ?string $file): self
    {
        if ($text !== null && $file !== null) {
            throw new Misuse('token and tokenFile are both given; use one of them');
        }
        if ($text === null && $file === null) {
            $file = getenv('SIGNALBOX_TOKEN_FILE') ?: null;
            $text = $file === null ? (getenv('SIGNALBOX_TOKEN') ?: null) : null;
        }
        if ($file === null) {
            return new self($text === null ? '' : self::usable('the token', $text));
        }
        $text = self::read($file);
        if ($text === null) {
            throw new Misuse("the file of the token \"$file\" cannot be read; check its name and its permissions");
        }
        return new self(self::usable("the token in \"$file\"", $text), is_file($file) ? $file : ''); // A pipe can be read only once.
    }

    private static function read(string $file): ?string
    {
        $isName = $file !== '' && !str_contains($file, "\0");
        return $isName && ($text = @file_get_contents($file)) !== false ? $text : null;
    }

    private static function usable(string $what, #[\SensitiveParameter] string $text): string
    {
        $text = trim($text);
        if (!self::isToken($text)) {
            $why = $text === '' ? 'is empty' : 'has characters that no token has, such as a line end in its middle';
            throw new Misuse("$what $why; \"signalbox token create\" makes a token");
        }
        return $text;
    }

    /** Whether a header can have it. */
    private static function isToken(#[\SensitiveParameter] string $text): bool
    {
        return preg_match('/^[\x20-\x7e]+$/D', $text) === 1;
    }

    public function text(): string
    {
        return $this->text;
    }

    /** Reads the file again. One that has no token, as while it is replaced, leaves the token as it is. */
    public function reload(): string
    {
        $text = $this->file === '' ? '' : trim((string) self::read($this->file));
        return $this->text = self::isToken($text) ? $text : $this->text;
    }
}
