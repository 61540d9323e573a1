package io.github.signalbox;

import io.github.signalbox.SignalboxException.Misuse;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** What the client shows the server. It is used by the client's thread only. */
final class Token {
    private static final long AGE_MAX_NANOS = 5_000_000_000L;

    /** The file is read again; {@code null}: there is none, or it can be read only once. */
    private final Path file;

    private String text;
    private long readAt;

    private Token(Path file, String text) {
        if (!text.isEmpty() && !isToken(text)) {
            throw new Misuse("the token has characters that no token has; \"signalbox token create\" makes a token");
        }
        this.file = file;
        this.text = text;
        readAt = System.nanoTime();
    }

    /** A token that does not change; empty: nothing is shown. */
    static Token of(String text) {
        return new Token(null, text);
    }

    static Token inFile(String name) {
        Path file = Path.of(name);
        String text;
        try {
            text = Files.readString(file).strip();
        } catch (IOException e) {
            throw new Misuse("the token cannot be read: " + e, "", e);
        }
        if (text.isEmpty()) {
            throw new Misuse("the file of the token \"" + file
                    + "\" is empty; \"signalbox token create\" makes a token");
        }
        return new Token(Files.isRegularFile(file) ? file : null, text);
    }

    /** Whether a header can have it. */
    private static boolean isToken(String text) {
        return text.matches("[!-~]+");
    }

    /** The token, which is at most some seconds older than the file. */
    String read() {
        return System.nanoTime() - readAt < AGE_MAX_NANOS ? text : reload();
    }

    /** The token in the file. A file that cannot be used, as while it is replaced, leaves the token as it is. */
    String reload() {
        readAt = System.nanoTime();
        try {
            String now = file == null ? "" : Files.readString(file).strip();
            text = isToken(now) ? now : text;
        } catch (IOException unreadable) {
            // The token stays as it is.
        }
        return text;
    }
}
