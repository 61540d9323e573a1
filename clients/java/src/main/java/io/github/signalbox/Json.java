package io.github.signalbox;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** JSON as maps, lists, strings, {@link Long}, {@link Double}, {@link Boolean} and {@code null}. */
final class Json {
    private static final int DEPTH_MAX = 32;

    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    static String write(Object value) {
        StringBuilder out = new StringBuilder();
        write(out, value);
        return out.toString();
    }

    private static void write(StringBuilder out, Object value) {
        if (value instanceof String string) {
            quote(out, string);
        } else if (value instanceof Map<?, ?> map) {
            char before = '{';
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                quote(out.append(before), (String) entry.getKey());
                write(out.append(':'), entry.getValue());
                before = ',';
            }
            out.append(map.isEmpty() ? "{}" : "}");
        } else if (value instanceof List<?> list) {
            char before = '[';
            for (Object item : list) {
                write(out.append(before), item);
                before = ',';
            }
            out.append(list.isEmpty() ? "[]" : "]");
        } else {
            out.append(value);
        }
    }

    private static void quote(StringBuilder out, String string) {
        out.append('"');
        for (char c : string.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }

    /**
     * Reads one object.
     *
     * @throws IllegalArgumentException if the text is something else
     */
    @SuppressWarnings("unchecked")
    static Map<String, Object> object(String text) {
        Json json = new Json(text);
        try {
            if (json.value(0) instanceof Map<?, ?> map && json.next() == '\0') {
                return (Map<String, Object>) map;
            }
        } catch (StringIndexOutOfBoundsException end) {
            throw json.wrong();
        }
        throw json.wrong();
    }

    private IllegalArgumentException wrong() {
        return new IllegalArgumentException("no JSON object, at character " + at);
    }

    /** The next character that is not a space, which stays the next; NUL at the end. */
    private char next() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        return at < text.length() ? text.charAt(at) : '\0';
    }

    private boolean skip(char expected) {
        boolean is = next() == expected;
        at += is ? 1 : 0;
        return is;
    }

    private void expect(char expected) {
        if (!skip(expected)) {
            throw wrong();
        }
    }

    private Object value(int depth) {
        if (depth > DEPTH_MAX) {
            throw wrong();
        }
        return switch (next()) {
            case '{' -> map(depth);
            case '[' -> list(depth);
            case '"' -> string();
            case 't' -> word("true", true);
            case 'f' -> word("false", false);
            case 'n' -> word("null", null);
            default -> number();
        };
    }

    private Map<String, Object> map(int depth) {
        Map<String, Object> map = new LinkedHashMap<>();
        expect('{');
        if (skip('}')) {
            return map;
        }
        do {
            String key = string();
            expect(':');
            map.put(key, value(depth + 1));
        } while (skip(','));
        expect('}');
        return map;
    }

    private List<Object> list(int depth) {
        List<Object> list = new ArrayList<>();
        expect('[');
        if (skip(']')) {
            return list;
        }
        do {
            list.add(value(depth + 1));
        } while (skip(','));
        expect(']');
        return list;
    }

    private String string() {
        expect('"');
        StringBuilder out = new StringBuilder();
        for (char c; (c = text.charAt(at++)) != '"'; ) {
            out.append(c == '\\' ? escaped() : c);
        }
        return out.toString();
    }

    private char escaped() {
        char c = text.charAt(at++);
        return switch (c) {
            case 'b' -> '\b';
            case 'f' -> '\f';
            case 'n' -> '\n';
            case 'r' -> '\r';
            case 't' -> '\t';
            case 'u' -> (char) Integer.parseInt(text.substring(at, at += 4), 16);
            default -> c;
        };
    }

    private Object word(String word, Object value) {
        if (!text.startsWith(word, at)) {
            throw wrong();
        }
        at += word.length();
        return value;
    }

    private Object number() {
        int begin = at;
        while (at < text.length() && "+-.0123456789eE".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        String number = text.substring(begin, at);
        if (number.matches("-?\\d{1,18}")) {
            return Long.valueOf(number);
        }
        return Double.valueOf(number); // Throws an IllegalArgumentException if it is not one.
    }
}
