package signalbox_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	signalbox "github.com/signalbox/signalbox/clients/go"
)

// A canceled acquire leaves nothing behind, wherever its request was, even if it arrives after its release.
func TestACanceledAcquireLeavesNothingBehind(t *testing.T) {
	for _, where := range []string{"before the server", "after the server", "in the queue", "late"} {
		t.Run(where, func(t *testing.T) {
			server := newServer(t)
			ctx, cancel := context.WithCancel(context.Background())
			returned, arrived := make(chan struct{}), make(chan struct{})
			url := front(t, server, func(path string, pass func() *http.Response, give func(*http.Response)) {
				switch {
				case path != "acquire":
					give(pass())
				case where == "before the server":
					cancel()
					give(nil)
				case where == "after the server":
					answer := pass()
					cancel()
					<-returned
					give(answer)
				case where == "in the queue":
					give(pass())
				case where == "late":
					cancel()
					<-returned
					give(pass())
					close(arrived)
				}
			})
			if where == "in the queue" {
				acquire(t, server.client(t, signalbox.Config{}), "a")
				go func() {
					eventually(t, "it waits", func() bool { return server.waiters(t, "a") == 1 })
					cancel()
				}()
			} else if where != "late" {
				close(arrived)
			}
			client := server.client(t, signalbox.Config{URLs: []string{url}})
			_, err := client.Acquire(ctx, "a", signalbox.Maximum(1), signalbox.Wait(time.Hour))
			close(returned)
			wantError(t, err, context.Canceled)
			if where == "late" {
				<-arrived
			}
			left := 0
			if where == "in the queue" {
				left = 1 // That of the holder.
			}
			if sessions, waiters := server.sessions(t), server.waiters(t, "a"); sessions != left || waiters != 0 {
				t.Fatal(sessions, waiters)
			}
		})
	}
}

func TestRequestsWhoseAnswerIsLostAreRepeated(t *testing.T) {
	server := newServer(t)
	var requests atomic.Int64
	url := front(t, server, func(_ string, pass func() *http.Response, give func(*http.Response)) {
		number := requests.Add(1)
		if number%3 == 1 { // Not executed.
			give(nil)
		}
		answer := pass()
		if number%3 == 2 {
			give(nil)
		}
		give(answer)
	})
	client := server.client(t, signalbox.Config{URLs: []string{url}})
	for range 3 {
		permit := acquire(t, client, "a", signalbox.TTL(20*time.Second))
		if err := permit.Check(); err != nil {
			t.Fatal(err)
		}
		if err := permit.Release(); err != nil || server.sessions(t) != 0 {
			t.Fatal(err)
		}
	}
}

// The validity counts from before the request was sent.
func TestALateAnswerLeavesLessTime(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	const ttl, late = 8 * time.Second, time.Second
	url := front(t, server, func(path string, pass func() *http.Response, give func(*http.Response)) {
		answer := pass()
		if path == "acquire" {
			time.Sleep(late)
		}
		if path == "renew" {
			give(nil)
		}
		give(answer)
	})
	client := server.client(t, signalbox.Config{URLs: []string{url}})
	permit := acquire(t, client, "a", signalbox.TTL(ttl))
	if left := permit.TimeLeft(); left > ttl*96/100-late {
		t.Fatal(left)
	}
}

// A server without room for a request that waits for a change answers those that do not.
func TestAServerWithoutRoomForWaitingRequestsKeepsPermits(t *testing.T) {
	server := newServer(t)
	renewed := make(chan struct{}, 100)
	url := handler(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "poll_ms") {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"error": {"code": "busy", "message": "no room"}}`))
			return
		}
		answer, err := http.Post(server.url+r.URL.Path, "application/json", bytes.NewReader(body))
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer answer.Body.Close()
		w.WriteHeader(answer.StatusCode)
		_, _ = io.Copy(w, answer.Body)
	})
	client := server.client(t, signalbox.Config{URLs: []string{url}, OnEvent: func(_ context.Context, event signalbox.Event) {
		if event.Kind == signalbox.EventRenewed {
			renewed <- struct{}{}
		}
	}})
	permit := acquire(t, client, "a", signalbox.TTL(10*time.Second))
	for range 5 {
		next(t, renewed)
	}
	if err := permit.Check(); err != nil {
		t.Fatal(err)
	}
}

func TestGoroutinesEnd(t *testing.T) {
	server := newServer(t)
	before := clientGoroutines()
	client := server.client(t, signalbox.Config{})
	var permits []*signalbox.Permit
	for i := range 20 {
		permits = append(permits, acquire(t, client, fmt.Sprint(i)))
	}
	server.command(t, "revoke", "--grant", fmt.Sprint(permits[0].Fence()), "--grace", "0")
	_ = closed(t, permits[0].Context())
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, _ = client.Acquire(ctx, "a", signalbox.Maximum(1))
	for _, permit := range permits {
		_ = permit.Release()
	}
	client.CloseIdleConnections()
	eventually(t, "all goroutines of the client have ended", func() bool { return clientGoroutines() <= before })
}

// A process that was stopped for longer than its lease knows it at its next step.
func TestAStoppedProcessKnowsThatItHasLost(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	child := exec.Command(os.Args[0], "-test.run=^TestHelperHolder$")
	child.Env = append(os.Environ(), "SIGNALBOX_TEST_HOLDER=1", "SIGNALBOX_URL="+server.url)
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	}()
	lines := bufio.NewScanner(stdout)
	say := func(expected string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != expected {
			t.Fatalf("%q and not %q", lines.Text(), expected)
		}
	}
	ask := func() { fmt.Fprintln(stdin) }
	ask()
	say("held: true")
	if err := child.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lease has ended", func() bool { return server.holders(t, "a") == 0 })
	ask()
	if err := child.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	say("held: false")
	ask()
	say("lost: true, context: true")
}

// TestHelperHolder is the process of the test before, and nothing in other runs.
func TestHelperHolder(*testing.T) {
	if os.Getenv("SIGNALBOX_TEST_HOLDER") == "" {
		return
	}
	defer os.Exit(0) // Without a line of the package testing.
	client, err := signalbox.New(signalbox.Config{})
	if err != nil {
		panic(err)
	}
	permit, err := client.Acquire(context.Background(), "a", signalbox.Maximum(1), signalbox.TTL(time.Second))
	if err != nil {
		panic(err)
	}
	lines := bufio.NewScanner(os.Stdin)
	for range 2 {
		lines.Scan()
		fmt.Printf("held: %t\n", permit.Check() == nil)
	}
	lines.Scan()
	<-permit.Context().Done()
	fmt.Printf("lost: %t, context: %t\n", permit.Check() != nil, context.Cause(permit.Context()) != nil)
}

// guarded starts a server on which programs need a token, and returns it with a file that has a client's token.
func guarded(t *testing.T) (*server, func(arguments ...string) string, string) {
	t.Helper()
	server, token := tokens(t, `networks = ["127.0.0.0/8 none"]`)
	file := filepath.Join(t.TempDir(), "token")
	write(t, file, token("create", "first", "--rights", "acquire"))
	eventually(t, "the server accepts the token", func() bool {
		client := server.client(t, signalbox.Config{TokenFile: file})
		return client.Do(context.Background(), "a", func(context.Context, *signalbox.Permit) error { return nil }, signalbox.Maximum(1)) == nil
	})
	return server, token, file
}

func TestATokenIsReadAgainWhenItIsRefused(t *testing.T) {
	t.Parallel()
	server, token, file := guarded(t)
	renewed := make(chan struct{}, 100)
	client := server.client(t, signalbox.Config{TokenFile: file, OnEvent: func(_ context.Context, event signalbox.Event) {
		if event.Kind == signalbox.EventRenewed {
			renewed <- struct{}{}
		}
	}})
	permit := acquire(t, client, "a", signalbox.TTL(4*time.Second))
	write(t, file, token("create", "second", "--rights", "acquire"))
	token("revoke", "first")
	for range 6 {
		next(t, renewed)
	}
	if err := permit.Check(); err != nil {
		t.Fatal(err)
	}
	if err := acquire(t, client, "b").Release(); err != nil {
		t.Fatal(err)
	}
}

func TestAClientWithoutRightsLosesItsPermitsWhenTheyEnd(t *testing.T) {
	t.Parallel()
	server, token, file := guarded(t)
	client := server.client(t, signalbox.Config{TokenFile: file})
	permit := acquire(t, client, "a", signalbox.TTL(3*time.Second))
	token("revoke", "first")
	wantReason(t, closed(t, permit.Context()), signalbox.ReasonNotPermitted)
	_, err := client.Acquire(context.Background(), "b", signalbox.Maximum(1))
	wantError(t, err, signalbox.ErrNotPermitted)
	other := server.client(t, signalbox.Config{})
	_, err = other.Acquire(context.Background(), "b", signalbox.Maximum(1))
	wantError(t, err, signalbox.ErrNotPermitted)
}

// certify makes an authority and a certificate of it for 127.0.0.1, and returns the files.
func certify(t *testing.T, folder string) (authority, certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	certificate, key = filepath.Join(folder, "certificate.pem"), filepath.Join(folder, "key.pem")
	write(t, certificate, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})))
	write(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
	return certificate, certificate, key
}

func TestTheServerIsVerifiedOverTLS(t *testing.T) {
	folder := t.TempDir()
	authority, certificate, key := certify(t, folder)
	config := filepath.Join(folder, "signalbox.toml")
	write(t, config, fmt.Sprintf("[tls]\ncert = %q\nkey = %q\n", certificate, key))
	server := newServer(t, "--config", config)
	urls := []string{strings.Replace(server.url, "http:", "https:", 1)}
	client := server.client(t, signalbox.Config{URLs: urls, CA: authority})
	if err := acquire(t, client, "a").Release(); err != nil {
		t.Fatal(err)
	}
	// Its authority is unknown, or its name is another one.
	other, _, _ := certify(t, t.TempDir())
	misnamed := []string{strings.Replace(urls[0], "127.0.0.1", "localhost", 1)}
	for _, config := range []signalbox.Config{{URLs: urls, CA: other}, {URLs: misnamed, CA: authority}, {URLs: append(urls, misnamed...), CA: other}} {
		config.UnreachableAfter = time.Hour
		_, err := server.client(t, config).Acquire(context.Background(), "a", signalbox.Maximum(1))
		if wantError(t, err, signalbox.ErrUnreachable); !strings.Contains(err.Error(), "certificate") {
			t.Fatal(err)
		}
	}
}

func TestAServerWithoutRoomIsNotUnreachable(t *testing.T) {
	config := filepath.Join(t.TempDir(), "signalbox.toml")
	write(t, config, "[session]\nmax_sessions = 1\n")
	server := newServer(t, "--config", config)
	acquire(t, server.client(t, signalbox.Config{}), "a")
	for _, urls := range [][]string{{server.url}, {"http://127.0.0.1:1", server.url}} {
		client := server.client(t, signalbox.Config{URLs: urls, UnreachableAfter: time.Second})
		_, err := client.Acquire(context.Background(), "b", signalbox.Maximum(1))
		var failure *signalbox.Error
		if wantError(t, err, signalbox.ErrBusy); !errors.As(err, &failure) || failure.Code != "limit_reached" {
			t.Fatal(err)
		}
	}
}
