// Package signalbox holds resources of a signalbox server: distributed locks, semaphores and concurrency limits.
//
// A [Client] acquires a name and returns a [Permit], which is renewed in the background until it is released:
//
//	client, err := signalbox.New(signalbox.Config{}) // The server is in SIGNALBOX_URL.
//	permit, err := client.Acquire(ctx, "reports", signalbox.Maximum(2), signalbox.Wait(time.Minute))
//	if errors.Is(err, signalbox.ErrTimedOut) { … }
//	defer permit.Release()
//	err = work(permit.Context())
//
// # Losing a permit
//
// A permit is valid for some seconds after the last answer of the server. If no server answers until then, or an administrator
// revokes it, others may get the resources. [Permit.Context] is then canceled, and [Permit.Check] reads the clock: it is right
// also in a program that was stopped. Between a check and the work after it a program can be stopped all the same, so send
// [Permit.Fence] with each write to a store that cannot tolerate two writers, and let the store refuse lower ones.
//
// # Failures
//
// The errors of the methods are of the kinds [ErrBusy], [ErrTimedOut], [ErrQueueFull], [ErrLost], [ErrUnreachable],
// [ErrNotPermitted] and [ErrMisuse], which [errors.Is] finds. An acquire that fails, or whose context ends, holds nothing.
//
// # Suspended machines
//
// On Linux, a permit's clock keeps running while the machine is suspended. On other systems it may stand still, so that a program
// takes a permit that was lost meanwhile for valid: let the store check [Permit.Fence] there.
package signalbox

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

const (
	defaultURL = "http://127.0.0.1:11217"
	// How long a server has to answer, beyond the time that a request waits for a change.
	answerTime = 2 * time.Second
	// How long giving back may take.
	releaseTime = 5 * time.Second
	// How long giving back may take for a program that wants to continue: after a canceled acquire, and after a loss.
	cleanupTime = 2 * time.Second
	// Idle connections are closed before the server does, which is after 15 s.
	idleTime = 10 * time.Second
)

// Config says where the servers are, and how to connect. Its zero value reads all of it from the environment.
type Config struct {
	// URLs of the HTTP listeners of a server, or of all nodes of a cluster; a text may have several, with commas between them.
	// SIGNALBOX_URL, or else http://127.0.0.1:11217, unless given.
	URLs []string
	// Token proves what the client may do. Give it or TokenFile. Unless one is given, SIGNALBOX_TOKEN_FILE says the file, or
	// else SIGNALBOX_TOKEN the token.
	Token string
	// TokenFile has the token. It is read again for each connection and when a token is refused, so its content may be
	// replaced.
	TokenFile string
	// TokenOverPlain permits sending the token to other machines without TLS, where others may read it. So does
	// SIGNALBOX_TOKEN_OVER_PLAIN=1.
	TokenOverPlain bool
	// CA is a file with the certificates, in PEM, of the authorities that are trusted for https. SIGNALBOX_CA, or else
	// the system's, unless given.
	CA string
	// TLS has further settings, such as certificates of the client.
	TLS *tls.Config
	// UnreachableAfter is how long an acquire tries to reach a server; 10 s unless given.
	UnreachableAfter time.Duration
	// OnEvent is called with what happens to permits, with the context of the acquire or of the permit. It must return soon:
	// a permit is not renewed meanwhile.
	OnEvent func(context.Context, Event)
}

// Client acquires permits. All goroutines of a program can share one.
type Client struct {
	urls             []string
	preferred        atomic.Int32
	token            *token
	transport        *http.Transport
	unreachableAfter time.Duration
	onEvent          func(context.Context, Event)
}

// New makes a client. It connects to no server yet. It fails with [ErrMisuse] if the configuration is wrong.
func New(config Config) (*Client, error) {
	urls := config.URLs
	if len(urls) == 0 {
		urls = []string{or(os.Getenv("SIGNALBOX_URL"), defaultURL)}
	}
	urls = strings.Split(strings.Join(urls, ","), ",")
	token, err := config.token()
	if err != nil {
		return nil, err
	}
	mayBePlain := token.read() == "" || config.TokenOverPlain || os.Getenv("SIGNALBOX_TOKEN_OVER_PLAIN") == "1"
	client := &Client{token: token, unreachableAfter: config.UnreachableAfter, onEvent: config.OnEvent}
	for _, text := range urls {
		base, err := parseURL(text, mayBePlain)
		if err != nil {
			return nil, err
		}
		client.urls = append(client.urls, base)
	}
	if len(client.urls) > 1 {
		client.preferred.Store(unknown)
	}
	if client.unreachableAfter <= 0 {
		client.unreachableAfter = 10 * time.Second
	}
	if client.onEvent == nil {
		client.onEvent = func(context.Context, Event) {}
	}
	secure, err := tlsConfig(config)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: answerTime}
	client.transport = &http.Transport{
		Proxy: nil, // That of the environment is for other traffic.
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			token.reload()
			return dialer.DialContext(ctx, network, address)
		},
		TLSClientConfig:     secure,
		MaxIdleConnsPerHost: 64,
		IdleConnTimeout:     idleTime,
		DisableCompression:  true,
		// A permit has a connection of its own while it waits for a change, and its requests are short.
		ReadBufferSize:  1 << 10,
		WriteBufferSize: 1 << 10,
	}
	return client, nil
}

// token is that of the program, or else that of the environment.
func (c *Config) token() (*token, error) {
	if c.TokenFile != "" && c.Token != "" {
		return nil, misuse("both Token and TokenFile are given; give one of them")
	}
	if c.TokenFile != "" || c.Token != "" {
		return newToken(c.TokenFile, c.Token)
	}
	return newToken(os.Getenv("SIGNALBOX_TOKEN_FILE"), os.Getenv("SIGNALBOX_TOKEN"))
}

// CloseIdleConnections closes the connections that no permit uses. They close by themselves after 10 s. Permits are not
// released.
func (c *Client) CloseIdleConnections() { c.transport.CloseIdleConnections() }

func or(first, second string) string {
	if first != "" {
		return first
	}
	return second
}

// parseURL checks the URL of a server, and returns it without a slash at its end.
func parseURL(text string, mayBePlain bool) (string, error) {
	text = strings.TrimSpace(text)
	if !strings.Contains(text, "://") {
		text = text[strings.LastIndex(text, "@")+1:] // What is before it may be a secret.
		return "", misuse("the URL of the server is %q, without a scheme; use one such as %s", text, defaultURL)
	}
	base, err := url.Parse(text)
	switch {
	case err != nil:
		return "", misuse("the URL of the server is wrong: %w", errors.Unwrap(err)) // Without the URL, which may have a secret.
	case (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" || base.User != nil || base.RawQuery != "" || base.Fragment != "":
		return "", misuse("the URL of the server is %q; use one such as %s", base.Redacted(), defaultURL)
	case base.Scheme == "http" && !mayBePlain && !isLoopback(base.Hostname()):
		return "", misuse("the token is not sent to %s without TLS, where others may read it; use https, or TokenOverPlain", base)
	}
	return strings.TrimRight(base.String(), "/"), nil
}

func isLoopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

func tlsConfig(config Config) (*tls.Config, error) {
	secure := config.TLS.Clone()
	if secure == nil {
		secure = &tls.Config{}
	}
	file := config.CA
	if file == "" && secure.RootCAs == nil {
		file = os.Getenv("SIGNALBOX_CA")
	}
	if file == "" {
		return secure, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, misuse("the certificates of authorities cannot be read: %w", err)
	}
	secure.RootCAs = x509.NewCertPool()
	if !secure.RootCAs.AppendCertsFromPEM(text) {
		return nil, misuse("the file %q has no certificates in PEM", file)
	}
	return secure, nil
}
