<?php

declare(strict_types=1);

namespace Signalbox;

/**
 * What the client shows the server; empty: nothing.
 *
 * @internal
 */
final class Token
{
    private string $text;

    /** @param string $file is used before the text, if it is not empty */
    public function __construct(private string $file, #[\SensitiveParameter] string $text)
    {
        $this->text = $text;
        if ($file !== '') {
            $this->text = trim((string) @file_get_contents($file));
            if ($this->text === '') {
                throw new Misuse("the file of the token \"$file\" cannot be read or is empty; \"signalbox token create\" makes a token");
            }
            if (!is_file($file)) {
                $this->file = ''; // A pipe can be read only once.
            }
        }
    }

    public function text(): string
    {
        return $this->text;
    }

    /** Reads the file again. One that cannot be used, as while it is replaced, leaves the token as it is. */
    public function reload(): string
    {
        $text = $this->file === '' ? '' : trim((string) @file_get_contents($this->file));
        return $this->text = $text === '' ? $this->text : $text;
    }
}
