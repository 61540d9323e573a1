package io.github.signalbox;

import io.github.signalbox.SignalboxException.Misuse;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.net.URISyntaxException;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/**
 * The configuration from a builder and the environment, checked.
 *
 * @param tls {@code null}: that of Java
 */
record Configuration(List<String> urls, Token token, SSLContext tls) {
    private static final int PORT_MAX = 65_535;
    private static final String DEFAULT_URL = "http://127.0.0.1:11217";

    static Configuration of(Client.Builder builder) {
        return of(builder, System.getenv());
    }

    static Configuration of(Client.Builder builder, Map<String, String> environment) {
        Token token = token(builder.token, builder.tokenFile, environment);
        boolean mayBePlain = token.read().isEmpty() || builder.isTokenOverPlain
                || "1".equals(environment.get("SIGNALBOX_TOKEN_OVER_PLAIN"));
        String variable = environment.getOrDefault("SIGNALBOX_URL", "");
        List<String> urls = builder.urls != null ? builder.urls
                : variable.isEmpty() ? List.of(DEFAULT_URL) : List.of(variable.split(",", -1)); // A comma at its end is a mistake.
        String ca = builder.ca != null ? builder.ca : environment.getOrDefault("SIGNALBOX_CA", "");
        SSLContext tls = builder.tls != null ? builder.tls : trusting(ca);
        return new Configuration(urls.stream().map(url -> base(url.strip(), mayBePlain)).toList(), token, tls);
    }

    /** A token that the program gives takes precedence over the environment. */
    private static Token token(String text, String file, Map<String, String> environment) {
        if (text != null && file != null) {
            throw new Misuse("token and tokenFile are both given; use one of them");
        }
        if (text != null) {
            return Token.of(text);
        }
        if (file != null) {
            return Token.inFile(file);
        }
        String fileVariable = environment.getOrDefault("SIGNALBOX_TOKEN_FILE", "");
        String variable = environment.getOrDefault("SIGNALBOX_TOKEN", "");
        return !fileVariable.isEmpty() ? Token.inFile(fileVariable) : variable.isEmpty() ? Token.none() : Token.of(variable);
    }

    /** Checks the URL of a server, and returns it without a slash at its end. */
    private static String base(String text, boolean mayBePlain) {
        if (!text.contains("://")) {
            throw wrong(text, "begin it with http:// or https://");
        }
        URI url;
        try {
            url = new URI(text);
        } catch (URISyntaxException e) {
            throw wrong(text, "it is no URL from its character " + e.getIndex() + " on");
        }
        boolean isSecure = "https".equalsIgnoreCase(url.getScheme());
        if (!isSecure && !"http".equalsIgnoreCase(url.getScheme()) || url.getHost() == null || url.getUserInfo() != null
                || url.getQuery() != null || url.getFragment() != null) {
            throw wrong(text, "it has http or https, a host and a port, and no user");
        }
        if (url.getPort() == 0 || url.getPort() > PORT_MAX) {
            throw wrong(text, "a port is 1 to " + PORT_MAX);
        }
        if (!isSecure && !mayBePlain && !isLoopback(url.getHost())) {
            throw new Misuse("the token is not sent to \"" + url
                    + "\" without TLS, where others may read it; use https, or tokenOverPlain");
        }
        return text.replaceAll("/+$", "");
    }

    private static Misuse wrong(String url, String rule) {
        String shown = url.replaceFirst("^(.*//)?[^/]*@", "$1…@"); // Without a password.
        return new Misuse("the URL \"" + shown + "\" is wrong: " + rule + "; use one such as " + DEFAULT_URL);
    }

    private static boolean isLoopback(String host) {
        return host.equals("localhost") || host.equals("[::1]") || host.matches("127(\\.\\d{1,3}){3}");
    }

    private static SSLContext trusting(String file) {
        if (file.isEmpty()) {
            return null;
        }
        try (InputStream in = new FileInputStream(file)) {
            Collection<? extends Certificate> authorities =
                    CertificateFactory.getInstance("X.509").generateCertificates(in);
            if (authorities.isEmpty()) {
                throw new Misuse("the file \"" + file + "\" has no certificates in PEM");
            }
            KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
            store.load(null, null);
            for (Certificate authority : authorities) {
                store.setCertificateEntry("authority " + store.size(), authority);
            }
            TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            trust.init(store);
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(null, trust.getTrustManagers(), null);
            return context;
        } catch (IOException | GeneralSecurityException e) {
            throw new Misuse("the certificates in \"" + file + "\" cannot be read: " + e.getMessage(), "", e);
        }
    }
}
