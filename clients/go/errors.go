package signalbox

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"
)

// The kinds of failures, for [errors.Is].
var (
	// ErrBusy: the resources are in use, or the semaphore is paused: try again later, or use [Wait]. Or the server has no
	// room, with the Code "limit_reached". Nothing is held.
	ErrBusy = errors.New("busy")
	// ErrTimedOut: the resources were not free within the time of [Wait]. Nothing is held.
	ErrTimedOut = errors.New("timed out")
	// ErrQueueFull: at least as many requests wait as [QueueMax] permits. Nothing is held.
	ErrQueueFull = errors.New("queue full")
	// ErrLost: the permit, or the place in the queue, was lost. A [LostError] says why.
	ErrLost = errors.New("lost")
	// ErrUnreachable: no server could answer for [Config.UnreachableAfter], or the certificates of all are not trusted. An acquire
	// holds nothing.
	ErrUnreachable = errors.New("unreachable")
	// ErrNotPermitted: the client has no right to acquire the name, or its token is not accepted.
	ErrNotPermitted = errors.New("not permitted")
	// ErrMisuse: the request or the configuration cannot succeed as it is, such as a URL of a port that does not speak HTTP.
	ErrMisuse = errors.New("misuse")
)

// Error says why a request failed. [errors.Is] finds its kind, and also the context's error or that of the network.
type Error struct {
	// Kind is one of the errors of this package, such as [ErrBusy].
	Kind error
	// Code is the server's code for the refusal, such as "paused" (docs/http.md); empty if no server refused the request.
	Code string

	text  string
	cause error
}

func (e *Error) Error() string { return e.text }

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.cause}
}

func misuse(format string, arguments ...any) *Error {
	err := fmt.Errorf(format, arguments...)
	return &Error{Kind: ErrMisuse, text: err.Error(), cause: errors.Unwrap(err)}
}

// refusal is the error for an answer that grants nothing.
func (c *Client) refusal(verb string, w *wanted, answer *answer) error {
	code, message := answer.Error.Code, answer.Error.Message
	var kind error = ErrMisuse
	switch code {
	case "busy":
		kind, message = ErrBusy, "it is in use; try again later, or wait with signalbox.Wait"
	case "paused", "limit_reached":
		kind = ErrBusy
	case "timed_out":
		kind, message = ErrTimedOut, timedOut(w)
	case "queue_full":
		kind, message = ErrQueueFull, "it is in use, and enough requests wait already; try again later"
	case "canceled", "revoked", "removed":
		kind = &LostError{Name: w.name, Reason: Reason(code)}
	case "unauthorized", "not_permitted", "too_many_wrong_tokens":
		kind = ErrNotPermitted
		if c.token.read() == "" {
			message = "the server permits it only with a token, and the client was given none; set Token, TokenFile or SIGNALBOX_TOKEN_FILE"
		}
	}
	return &Error{Kind: kind, Code: code, text: fmt.Sprintf("cannot %s %q: %s", verb, w.name, message)}
}

func timedOut(w *wanted) string {
	return fmt.Sprintf("it was in use for all of the time to wait, %v; try again later, or wait longer", w.wait)
}

// unreachable is the error for a request that is no longer repeated, after this long without an answer.
func (c *Client) unreachable(verb string, w *wanted, silent time.Duration, cause error) error {
	var last *unanswered
	if errors.As(cause, &last) && last.answer != nil && last.answer.Error.Code == "limit_reached" {
		return c.refusal(verb, w, last.answer)
	}
	kind := ErrUnreachable
	text := fmt.Sprintf("no server could answer for %v; check the servers and the network (last attempt: %v)", silent.Round(100*time.Millisecond), cause)
	if isHopeless(cause) {
		text = cause.Error()
		var untrusted *tls.CertificateVerificationError
		if !errors.As(cause, &untrusted) {
			kind = ErrMisuse
		}
	}
	return &Error{Kind: kind, text: fmt.Sprintf("cannot %s %q: %s", verb, w.name, text), cause: cause}
}

// Reason says why a permit was lost. A server may send further ones.
type Reason string

const (
	// ReasonExpired: the lease ended before it was renewed, such as in a program that was stopped, or the server was
	// restarted without a data directory.
	ReasonExpired Reason = "expired"
	// ReasonRevoked: an administrator takes the resources away.
	ReasonRevoked Reason = "revoked"
	// ReasonUnreachable: no server answered until the lease ended.
	ReasonUnreachable Reason = "unreachable"
	// ReasonNotPermitted: a server refused to renew the lease, such as for an expired token, until it ended.
	ReasonNotPermitted Reason = "not_permitted"
	// ReasonReleased: this program has released the permit.
	ReasonReleased Reason = "released"
)

// LostError is the cause of a permit's context, and what [Permit.Check] returns. errors.Is(err, ErrLost) holds for it.
type LostError struct {
	// Name is the name that was acquired.
	Name string
	// Reason says why it is lost.
	Reason Reason
}

func (e *LostError) Error() string {
	switch e.Reason {
	case ReasonReleased:
		return fmt.Sprintf("the permit for %q was released", e.Name)
	default:
		return fmt.Sprintf("the permit for %q is lost: %s; stop the work", e.Name, or(explanations[e.Reason], string(e.Reason)))
	}
}

var explanations = map[Reason]string{
	ReasonExpired:      "its lease has expired, or the server was restarted without a data directory",
	ReasonRevoked:      "an administrator takes it away",
	ReasonUnreachable:  "no server answered until its lease ended",
	ReasonNotPermitted: "the server refused this client until its lease ended",
}

// Is says that a LostError is an [ErrLost].
func (e *LostError) Is(target error) bool { return target == ErrLost }
