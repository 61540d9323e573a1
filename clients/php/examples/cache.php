<?php

/**
 * Of many processes that need the same page at once, one renders it, and the others wait for it. The cache is a file.
 *
 * SIGNALBOX_URL=http://127.0.0.1:11217 php cache.php page.html
 */

declare(strict_types=1);

use Signalbox\{Client, Permit};

foreach (glob(__DIR__ . '/../src/*.php') as $file) {
    require $file; // A program with composer has require 'vendor/autoload.php'.
}

$file = $argv[1];
$find = fn (): ?string => is_file($file) ? file_get_contents($file) : null;
$render = function (Permit $permit) use ($file): string {
    $page = 'rendered by process ' . getmypid();
    $permit->refresh(); // Between the steps of long work.
    file_put_contents("$file.{$permit->fence()}", $page);
    rename("$file.{$permit->fence()}", $file); // At once, so that no process finds half of it.
    return $page;
};
echo (new Client())->share('page/42', $find, $render, waitSeconds: 10.0);
