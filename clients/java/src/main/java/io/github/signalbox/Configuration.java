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
import java.util.stream.Stream;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/**
 * What a builder and the environment say, checked.
 *
 * @param tls {@code null}: that of Java
 */
record Configuration(List<String> urls, Token token, SSLContext tls) {
    private static final String DEFAULT_URL = "http://127.0.0.1:11217";

    static Configuration of(Client.Builder builder) {
        String file = or(builder.tokenFile, "SIGNALBOX_TOKEN_FILE");
        String text = or(builder.token, "SIGNALBOX_TOKEN");
        Token token = file.isEmpty() ? Token.of(text) : Token.inFile(file);
        boolean mayBePlain = token.read().isEmpty() || builder.isTokenOverPlain
                || "1".equals(System.getenv("SIGNALBOX_TOKEN_OVER_PLAIN"));
        String environment = or(null, "SIGNALBOX_URL");
        List<String> urls = !builder.urls.isEmpty() ? builder.urls
                : environment.isEmpty() ? List.of(DEFAULT_URL) : List.of(environment.split(","));
        SSLContext tls = builder.tls != null ? builder.tls : trusting(or(builder.ca, "SIGNALBOX_CA"));
        return new Configuration(urls.stream().map(url -> base(url.strip(), mayBePlain)).toList(), token, tls);
    }

    private static String or(String given, String variable) {
        return Stream.of(given, System.getenv(variable)).filter(value -> value != null).findFirst().orElse("");
    }

    /** Checks the URL of a server, and returns it without a slash at its end. */
    private static String base(String text, boolean mayBePlain) {
        URI url;
        try {
            url = new URI(text);
        } catch (URISyntaxException e) {
            throw new Misuse("a URL of the servers is wrong at its character " + e.getIndex() + ": " + e.getReason());
        }
        boolean isSecure = "https".equalsIgnoreCase(url.getScheme());
        if (!isSecure && !"http".equalsIgnoreCase(url.getScheme()) || url.getHost() == null || url.getUserInfo() != null
                || url.getQuery() != null || url.getFragment() != null) {
            throw new Misuse("a URL of the servers has another form than " + DEFAULT_URL
                    + "; it has a scheme, a host and a port, and no user");
        }
        if (!isSecure && !mayBePlain && !isLoopback(url.getHost())) {
            throw new Misuse("the token is not sent to " + url
                    + " without TLS, where others may read it; use https, or tokenOverPlain");
        }
        return text.replaceAll("/+$", "");
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
            throw new Misuse("the certificates of authorities cannot be read: " + e, "", e);
        }
    }
}
