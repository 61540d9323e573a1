<?php
// A reader: PHP's own semaphore functions, by one command a line. The argument is the key in hexadecimal.
$semaphore = sem_get(intval($argv[1], 16), 32767);
echo "ready\n";
while (($command = fgets(STDIN)) !== false) {
    switch (trim($command)) {
        case 'acquire':
            echo @sem_acquire($semaphore) ? "acquired\n" : error_get_last()['message'] . "\n";
            break;
        case 'try':
            echo sem_acquire($semaphore, true) ? "acquired\n" : "busy\n";
            break;
        case 'release':
            echo @sem_release($semaphore) ? "released\n" : error_get_last()['message'] . "\n";
            break;
        case 'remove':
            echo @sem_remove($semaphore) ? "removed\n" : error_get_last()['message'] . "\n";
            break;
    }
}
