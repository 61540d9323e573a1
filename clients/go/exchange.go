package signalbox

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"time"
)

// unknown is the preferred server of a client that has to ask all.
const unknown = -1

// The longest answer that is read: 64 leases with their slots have less.
const answerMax = 1 << 22

// A request, as the server reads it (docs/http.md, "Leases"). The zero values are left out.
type request struct {
	Key      string   `json:"key,omitempty"`
	Keys     []string `json:"keys,omitempty"`
	Claims   []*claim `json:"claims,omitempty"`
	TTLMs    int64    `json:"ttl_ms,omitempty"`
	WaitMs   int64    `json:"wait_ms,omitempty"`
	QueueMax *uint32  `json:"queue_max,omitempty"`
	Share    bool     `json:"share,omitempty"`
	Done     bool     `json:"done,omitempty"`
	Label    string   `json:"label,omitempty"`
	LabelHex string   `json:"label_hex,omitempty"`
	Place    string   `json:"place,omitempty"`
	PollMs   int64    `json:"poll_ms,omitempty"`
}

type claim struct {
	Name      string  `json:"name,omitempty"`
	NameHex   string  `json:"name_hex,omitempty"`
	Resources *uint32 `json:"resources,omitempty"`
	Maximum   *uint32 `json:"maximum,omitempty"`
	Slot      *uint16 `json:"slot,omitempty"`
}

// A lease, as the server describes it.
type lease struct {
	State    string  `json:"state"`
	ValidMs  int64   `json:"valid_ms"`
	TTLMs    int64   `json:"ttl_ms"`
	Grant    string  `json:"grant"`
	Slots    [][]int `json:"slots"`
	Position int     `json:"position"`
	Place    string  `json:"place"`
	Reason   string  `json:"reason"`
}

// An answer of a server to a request: success or a refusal.
type answer struct {
	lease
	Leases []lease `json:"leases"`
	Error  struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`

	status int
	// sent is when the request was about to be sent.
	sent moment
}

// until is the end of a lease's validity.
func (a *answer) until(lease *lease) moment {
	return a.sent.add(time.Duration(lease.ValidMs) * time.Millisecond)
}

// unanswered is the error of a request that may be repeated, and may have been executed.
type unanswered struct {
	// after is when the server wants to be asked again.
	after time.Duration
	// answer is what the server said, if it did.
	answer *answer
	// isHopeless says that repeating does not help: what answers is certainly not a server that the client can use.
	isHopeless bool
	cause      error
}

// isHopeless says whether an error of post is hopeless.
func isHopeless(err error) bool {
	var failure *unanswered
	return errors.As(err, &failure) && failure.isHopeless
}

// isUnsent says that no server has received the request.
func isUnsent(err error) bool {
	var network *net.OpError
	return isHopeless(err) || (errors.As(err, &network) && network.Op == "dial")
}

func (e *unanswered) Error() string { return e.cause.Error() }
func (e *unanswered) Unwrap() error { return e.cause }

// post asks the servers, and once more if the token was refused and its file has another one. The request may stay without
// an answer for poll, and each server has a further time to answer. It fails with unanswered.
func (c *Client) post(ctx context.Context, path string, request request, poll, patience time.Duration) (*answer, error) {
	for used := c.token.read(); ; used = c.token.read() {
		answer, err := c.ask(ctx, path, request, poll, patience)
		if err != nil || !answer.refusesToken() || c.token.reload() == used {
			return answer, err
		}
	}
}

func (a *answer) refusesToken() bool {
	switch a.status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return true
	}
	return len(a.Leases) == 1 && a.Leases[0].State == "not_permitted"
}

// ask asks the server that answered last. If it does not answer, or none has yet, it asks all others in parallel without
// waiting for a change. A request may be executed twice without harm, since it has the same key.
func (c *Client) ask(ctx context.Context, path string, request request, poll, patience time.Duration) (*answer, error) {
	if len(c.urls) == 1 {
		return c.attempt(ctx, c.urls[0], path, request, poll, patience)
	}
	type result struct {
		server int
		answer *answer
		err    error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // Ends the attempts that are too late.
	results := make(chan result, len(c.urls))
	start := func(server int, poll time.Duration) {
		go func() {
			answer, err := c.attempt(ctx, c.urls[server], path, request, poll, patience)
			results <- result{server, answer, err}
		}()
	}
	startOthers := func(than int) {
		for server := range c.urls {
			if server != than {
				start(server, 0)
			}
		}
	}
	preferred, pending := int(c.preferred.Load()), 1
	if preferred == unknown {
		startOthers(unknown)
		pending = len(c.urls)
	} else {
		start(preferred, poll)
	}
	var failure *unanswered
	isHopeless := true
	for ; pending > 0; pending-- {
		result := <-results
		if result.err == nil {
			c.preferred.Store(int32(result.server))
			return result.answer, nil
		}
		// The answer of the server that leads counts most.
		other := result.err.(*unanswered)
		isHopeless = isHopeless && other.isHopeless
		if failure == nil || failure.answer == nil || failure.answer.Error.Code == "not_serving" {
			failure = other
		}
		if result.server == preferred && ctx.Err() == nil {
			c.preferred.CompareAndSwap(int32(preferred), unknown)
			startOthers(preferred)
			pending += len(c.urls) - 1
			preferred = unknown
		}
	}
	failure.isHopeless = isHopeless
	return nil, failure
}

// attempt asks one server.
func (c *Client) attempt(ctx context.Context, base, path string, request request, poll, patience time.Duration) (*answer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, poll+patience, errors.New("no answer in time"))
	defer cancel()
	request.PollMs = poll.Milliseconds()
	body, err := json.Marshal(request)
	if err != nil {
		return nil, &unanswered{cause: err}
	}
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/api/v1/lease/"+path, bytes.NewReader(body))
	if err != nil {
		return nil, &unanswered{cause: err}
	}
	post.Header.Set("Content-Type", "application/json")
	post.Header["Idempotency-Key"] = nil // It is not sent, but tells the transport to repeat the request on another connection.
	if token := c.token.read(); token != "" && path != "release" {
		post.Header.Set("Authorization", "Bearer "+token)
	}
	answer := &answer{sent: now()}
	response, err := c.transport.RoundTrip(post)
	if err == nil {
		body, err = io.ReadAll(io.LimitReader(response.Body, answerMax))
		response.Body.Close()
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, notAnswered(base, err)
	}
	answer.status = response.StatusCode
	if err := json.Unmarshal(body, answer); err != nil {
		return nil, &unanswered{cause: fmt.Errorf("%s: status %s without JSON; check that this is the HTTP listener of signalbox", base, response.Status)}
	}
	switch {
	case answer.status == http.StatusRequestTimeout || answer.status >= http.StatusInternalServerError:
		after, _ := strconv.Atoi(response.Header.Get("Retry-After"))
		return nil, &unanswered{
			after:  min(max(time.Duration(after), 0)*time.Second, 5*time.Second),
			answer: answer,
			cause:  fmt.Errorf("%s: %s: %s", base, answer.Error.Code, answer.Error.Message),
		}
	default:
		return answer, nil
	}
}

// notHTTP is the transport's error for a first line that is not HTTP. One that was cut off begins like HTTP.
var notHTTP = regexp.MustCompile(`malformed HTTP (response|status code|version) "[^H0-9"]`)

// notAnswered says why the server with this URL has not answered.
func notAnswered(base string, err error) *unanswered {
	var untrusted *tls.CertificateVerificationError
	var noTLS tls.RecordHeaderError
	switch {
	case errors.As(err, &untrusted):
		return &unanswered{isHopeless: true, cause: fmt.Errorf("%s: %w", base, err)}
	case errors.As(err, &noTLS):
		return &unanswered{isHopeless: true, cause: fmt.Errorf("%s does not speak TLS: give the HTTP listener (--http-port) of the server, with http if it has no TLS (%w)", base, err)}
	case notHTTP.MatchString(err.Error()):
		return &unanswered{isHopeless: true, cause: fmt.Errorf("%s does not speak HTTP: give the HTTP listener (--http-port) of the server, with https if it has TLS (%w)", base, err)}
	}
	if parsed, _ := url.Parse(base); parsed.Port() == "" {
		port := map[string]int{"http": 80, "https": 443}[parsed.Scheme]
		base += fmt.Sprintf(" (port %d; that of the server is usually 11217)", port)
	}
	return &unanswered{cause: fmt.Errorf("%s: %w", base, err)}
}

// pauses are those between repeated requests: random, and longer each time.
type pauses struct{ span time.Duration }

// wait waits for the next pause, which is at most longest unless the server wants a longer one. It returns early when one of
// the two ends.
func (p *pauses) wait(ctx context.Context, over <-chan struct{}, longest time.Duration, err error) {
	p.span = min(max(2*p.span, 100*time.Millisecond), longest)
	pause := p.span/2 + rand.N(p.span/2+1)
	var failure *unanswered
	if errors.As(err, &failure) {
		pause += failure.after
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-over:
	}
}
