package signalbox_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	signalbox "github.com/signalbox/signalbox/clients/go"
)

// patience bounds every wait for a condition.
const patience = 30 * time.Second

// server is a signalbox that ends with its test.
type server struct {
	process *os.Process
	url     string
	// counter is the address of the port for counters, for the command line.
	counter string
}

func binary() string {
	if path := os.Getenv("SIGNALBOX_BIN"); path != "" {
		return path
	}
	return "../../target/debug/signalbox"
}

// start starts a server with these further options and waits until it is ready. The function that it returns kills it.
func start(options ...string) (*server, func(), error) {
	arguments := append([]string{"serve", "--counter-port", "0", "--semaphore-port", "0"}, options...)
	if !slices.Contains(options, "--http-port") {
		arguments = append(arguments, "--http-port", "0")
	}
	command := exec.Command(binary(), arguments...)
	stderr, err := command.StderrPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w; build the server with \"cargo build\", or set SIGNALBOX_BIN", err)
	}
	stop := func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	}
	ready := regexp.MustCompile(`signalbox is ready .* counter=(\S+) .* http=(\S+)`)
	said := ""
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		said += lines.Text() + "\n"
		if ports := ready.FindStringSubmatch(lines.Text()); ports != nil {
			go io.Copy(io.Discard, stderr)
			return &server{process: command.Process, url: "http://" + ports[2], counter: ports[1]}, stop, nil
		}
	}
	stop()
	return nil, nil, fmt.Errorf("the server has not started: %s", said)
}

func newServer(t testing.TB, options ...string) *server {
	t.Helper()
	server, stop, err := start(options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return server
}

// tokens starts a server with rules of access, and returns a function that runs "signalbox token" and has the server read
// the tokens again.
func tokens(t testing.TB, rules string) (*server, func(arguments ...string) string) {
	t.Helper()
	folder := t.TempDir()
	tokens, config := filepath.Join(folder, "tokens.toml"), filepath.Join(folder, "signalbox.toml")
	var guarded *server
	change := func(arguments ...string) string {
		output, err := exec.Command(binary(), append([]string{"token"}, append(arguments, "--file", tokens)...)...).Output()
		if err != nil {
			t.Fatal(arguments, err)
		}
		if guarded != nil {
			guarded.signal(t, syscall.SIGHUP)
		}
		return strings.TrimSpace(string(output))
	}
	change("create", "other", "--rights", "read") // The server needs the file.
	write(t, config, fmt.Sprintf("[access]\ntokens = %q\n%s\n", tokens, rules))
	guarded = newServer(t, "--config", config)
	return guarded, change
}

func write(t testing.TB, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// client is a new client of the server, with no token of the environment.
func (s *server) client(t testing.TB, config signalbox.Config) *signalbox.Client {
	t.Helper()
	if config.URLs == nil {
		config.URLs = []string{s.url}
	}
	client, err := signalbox.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

// command runs the command line against the server.
func (s *server) command(t testing.TB, arguments ...string) string {
	t.Helper()
	command := exec.Command(binary(), arguments...)
	command.Env = append(os.Environ(), "SIGNALBOX_SERVER="+s.counter)
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v: %s", arguments, err, output)
	}
	return string(output)
}

// total returns the number of entries in a list of the JSON API; 0 for a name that does not exist.
func (s *server) total(t testing.TB, path string) int {
	t.Helper()
	response, err := http.Get(s.url + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var page struct {
		Total int
	}
	if response.StatusCode == http.StatusNotFound {
		return 0
	}
	if err := json.NewDecoder(response.Body).Decode(&page); err != nil {
		t.Fatal(err)
	}
	return page.Total
}

func (s *server) holders(t testing.TB, name string) int {
	t.Helper()
	return s.total(t, "/api/v1/holders?kind=counter&name="+url.QueryEscape(name))
}

func (s *server) waiters(t testing.TB, name string) int {
	t.Helper()
	return s.total(t, "/api/v1/waiters?kind=counter&name="+url.QueryEscape(name))
}

func (s *server) sessions(t testing.TB) int {
	t.Helper()
	return s.total(t, "/api/v1/sessions")
}

// signal sends a signal to the server's process. If it stops the server, it returns when the server answers nothing more, because
// its threads continue until one of them has got the signal.
func (s *server) signal(t testing.TB, signal syscall.Signal) {
	t.Helper()
	if err := s.process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is stopped", func() bool {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.process.Pid))
		return signal != syscall.SIGSTOP || err != nil || bytes.Contains(state, []byte(") T "))
	})
}

// answers says whether the server answers a probe soon.
func (s *server) answers() bool {
	prober := http.Client{Timeout: 100 * time.Millisecond}
	response, err := prober.Get(s.url + "/healthz")
	if err == nil {
		response.Body.Close()
	}
	return err == nil
}

func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// next waits for a value.
func next[T any](t testing.TB, values <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-values:
	case <-time.After(patience):
		t.Fatal("there is nothing more")
	}
	return value
}

// closed waits for the end of a context, and returns its cause.
func closed(t testing.TB, ctx context.Context) error {
	t.Helper()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(patience):
		t.Fatal("the context does not end")
		return nil
	}
}

func acquire(t testing.TB, client *signalbox.Client, name string, options ...signalbox.Option) *signalbox.Permit {
	t.Helper()
	permit, err := client.Acquire(context.Background(), name, append([]signalbox.Option{signalbox.Maximum(1)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = permit.Release() })
	return permit
}

func wantError(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("the error is %v and not %v", err, want)
	}
}

func wantReason(t testing.TB, err error, want signalbox.Reason) {
	t.Helper()
	var lost *signalbox.LostError
	if !errors.As(err, &lost) || lost.Reason != want {
		t.Fatalf("the error is %v, and its reason is not %q", err, want)
	}
}

// clientGoroutines counts the goroutines that run code of the client or of its connections.
func clientGoroutines() (count int) {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for _, stack := range strings.Split(string(stacks), "\n\n") {
		if strings.Contains(stack, "signalbox.(*") || strings.Contains(stack, "net/http.(*persistConn)") {
			count++
		}
	}
	return count
}

// handler serves HTTP until the end of the test, and returns its URL.
func handler(t testing.TB, handle http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handle)
	t.Cleanup(server.Close)
	return server.URL
}

// front is a proxy before a server, whose handler decides what happens to each request: pass sends it on and returns the
// answer, and give writes that to the client, or closes its connection if there is none.
func front(t testing.TB, server *server, handle func(path string, pass func() *http.Response, give func(*http.Response))) string {
	t.Helper()
	return handler(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		pass := func() *http.Response {
			request, _ := http.NewRequest(r.Method, server.url+r.URL.Path, strings.NewReader(string(body)))
			request.Header = r.Header.Clone()
			response, err := http.DefaultTransport.RoundTrip(request)
			if err != nil {
				return nil
			}
			return response
		}
		give := func(response *http.Response) {
			if response == nil {
				panic(http.ErrAbortHandler) // Closes the connection.
			}
			defer response.Body.Close()
			w.WriteHeader(response.StatusCode)
			_, _ = io.Copy(w, response.Body)
		}
		handle(filepath.Base(r.URL.Path), pass, give)
	})
}
