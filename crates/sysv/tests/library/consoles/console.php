<?php
// Evaluates PHP expressions, one a line, and answers each with one line: its value, and the messages of its warnings.
$console_messages = [];
set_error_handler(function ($level, $message) use (&$console_messages) {
    $console_messages[] = $message;
    return true;
});
echo "ready\n";
while (($console_line = fgets(STDIN)) !== false) {
    $console_messages = [];
    try {
        $console_value = eval('return ' . trim($console_line) . ';');
        $console_value = is_object($console_value) ? get_class($console_value) : var_export($console_value, true);
    } catch (Throwable $error) {
        $console_value = get_class($error) . ': ' . $error->getMessage();
        unset($error);
    }
    echo implode(' | ', [$console_value, ...$console_messages]), "\n";
}
