package io.github.signalbox;

import io.github.signalbox.SignalboxException.Misuse;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;

/** The token that the client sends. It is used by the client's thread only. */
final class Token {
    private static final long AGE_MAX_NANOS = 5_000_000_000L;

    /** The file is read again; {@code null}: there is none, or it can be read only once. */
    private final Path file;

    private String text;
    private long readAt;

    private Token(Path file, String text) {
        this.file = file;
        this.text = text;
        readAt = System.nanoTime();
    }

    /** No token is sent. */
    static Token none() {
        return new Token(null, "");
    }

    /** A token that does not change. */
    static Token of(String text) {
        return new Token(null, usable("the token", text.strip()));
    }

    static Token inFile(String name) {
        try (InputStream in = new FileInputStream(name)) { // Its failures are in words.
            String text = usable("the token in \"" + name + "\"", text(in.readAllBytes()));
            Path file = Path.of(name);
            return new Token(Files.isRegularFile(file) ? file : null, text);
        } catch (IOException e) {
            throw new Misuse("the token cannot be read: " + e.getMessage(), "", e);
        }
    }

    private static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.ISO_8859_1).strip();
    }

    private static String usable(String what, String text) {
        if (!isToken(text)) {
            throw new Misuse(what + (text.isEmpty() ? " is empty"
                    : " has characters that no token has, such as one of control in its middle")
                    + "; signalbox token create makes one");
        }
        return text;
    }

    /** Whether a header can have it. */
    private static boolean isToken(String text) {
        return text.matches("[ -~]+");
    }

    /** The token, which is at most some seconds older than the file. */
    String read() {
        return System.nanoTime() - readAt < AGE_MAX_NANOS ? text : reload();
    }

    /** The token in the file. A file that cannot be used, as while it is replaced, leaves the token as it is. */
    String reload() {
        readAt = System.nanoTime();
        try {
            String now = file == null ? "" : text(Files.readAllBytes(file));
            text = isToken(now) ? now : text;
        } catch (IOException unreadable) {
            // The token stays as it is.
        }
        return text;
    }
}
