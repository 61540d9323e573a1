<?php

declare(strict_types=1);

foreach (glob(__DIR__ . '/../src/*.php') as $file) {
    require_once $file;
}
require_once __DIR__ . '/Server.php';
