package signalbox

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"time"
	"unicode/utf8"
)

// Option is a part of an acquire.
type Option func(*wanted)

// wanted is what an acquire asks for.
type wanted struct {
	request
	// claim is the one that the options are about.
	claim *claim
	// name is the first one.
	name  string
	names []string
	ttl   time.Duration
	wait  time.Duration
	err   error
}

// Maximum is how many resources of the name may be in use at once. A name that is a declared semaphore needs none, and has
// its capacity.
func Maximum(maximum uint32) Option {
	return func(w *wanted) { w.claim.Maximum = &maximum }
}

// Resources is how many resources of the name are acquired; 1 unless given.
func Resources(resources uint32) Option {
	return func(w *wanted) { w.claim.Resources = &resources }
}

// Slot wants this slot of a declared semaphore with numbered slots; any unless given.
func Slot(slot uint16) Option {
	return func(w *wanted) { w.claim.Slot = &slot }
}

// Also acquires a further name in the same request: all names are granted, or none. Its options are [Maximum], [Resources]
// and [Slot].
func Also(name string, options ...Option) Option {
	return func(w *wanted) {
		first := w.claim
		w.add(name)
		for _, option := range options {
			option(w)
		}
		w.claim = first
	}
}

// TTL is how long the permit lasts when the client can no longer renew it: others get the resources so long after a crash. It
// is renewed several times in this time. The server's default, usually 30 s, unless given; at least 1 ms, and within the
// limits of the server.
func TTL(ttl time.Duration) Option {
	return func(w *wanted) {
		w.TTLMs = w.milliseconds("TTL", ttl, 1)
		w.ttl = time.Duration(w.TTLMs) * time.Millisecond
	}
}

// Wait waits in the queue for so long if the resources are in use; not at all unless given. The server has a limit, a day by
// default.
func Wait(wait time.Duration) Option {
	return func(w *wanted) {
		w.WaitMs = w.milliseconds("Wait", wait, 0)
		w.wait = time.Duration(w.WaitMs) * time.Millisecond
	}
}

// QueueMax does not wait if so many requests wait already.
func QueueMax(waiting uint32) Option {
	return func(w *wanted) { w.QueueMax = &waiting }
}

// Label is a text of up to 255 bytes, such as the id of a job, that the server's listings show beside the permit.
func Label(label string) Option {
	return func(w *wanted) {
		w.request.Label, w.LabelHex = "", ""
		if utf8.ValidString(label) {
			w.request.Label = label
		} else {
			w.LabelHex = hex.EncodeToString([]byte(label))
		}
	}
}

func (w *wanted) add(name string) {
	w.names = append(w.names, name)
	w.claim = &claim{Name: name}
	if !utf8.ValidString(name) {
		w.claim = &claim{NameHex: hex.EncodeToString([]byte(name))}
	}
	w.Claims = append(w.Claims, w.claim)
}

// milliseconds rounds up, so that no time becomes none.
func (w *wanted) milliseconds(option string, span time.Duration, least int64) int64 {
	ms := int64(span / time.Millisecond)
	if span%time.Millisecond > 0 {
		ms++
	}
	if span < 0 || ms < least {
		w.err = misuse("cannot acquire %q: %s(%v) is too short", w.name, option, span)
	}
	return min(ms, math.MaxUint32)
}

// poll is how long a request may wait for news of a lease with this time to live.
func poll(ttl time.Duration) time.Duration { return min(ttl/4, 20*time.Second) }

// Acquire acquires resources of a name, and waits for them if [Wait] is given. The permit is renewed until it is released, so
// release it in any case.
//
// Its context ends with ctx, so bound the wait with [Wait], and not with a ctx that ends before the work does. If ctx ends
// while Acquire waits, it releases what the server may have granted, which takes at most 2 s, and returns the cause.
//
// Errors are [ErrBusy], [ErrTimedOut], [ErrQueueFull], [ErrLost] (an administrator has canceled the wait or removed the name),
// [ErrUnreachable], [ErrNotPermitted] and [ErrMisuse].
func (c *Client) Acquire(ctx context.Context, name string, options ...Option) (*Permit, error) {
	w := &wanted{name: name, ttl: 30 * time.Second}
	w.add(name)
	for _, option := range options {
		option(w)
	}
	if w.err != nil {
		return nil, w.err
	}
	w.ttl = max(w.ttl, time.Second) // The server's shortest is not less, by default.
	key := make([]byte, 16)
	if _, err := rand.Read(key); err != nil {
		return nil, misuse("cannot acquire %q: no random numbers: %w", w.name, err)
	}
	w.Key = hex.EncodeToString(key)
	return c.acquire(ctx, w)
}

// TryAcquire is Acquire for a program that has something else to do if the resources are in use: then ok is false, and there
// is no error.
func (c *Client) TryAcquire(ctx context.Context, name string, options ...Option) (permit *Permit, ok bool, err error) {
	permit, err = c.Acquire(ctx, name, options...)
	if errors.Is(err, ErrBusy) || errors.Is(err, ErrTimedOut) || errors.Is(err, ErrQueueFull) {
		return nil, false, nil
	}
	return permit, err == nil, err
}

// Do acquires, calls work with the permit and its context, and releases, also if work panics. It returns the error of the acquire
// or of work. If the permit was lost before work returned, the error is also an [ErrLost].
func (c *Client) Do(ctx context.Context, name string, work func(context.Context, *Permit) error, options ...Option) (err error) {
	permit, err := c.Acquire(ctx, name, options...)
	if err != nil {
		return err
	}
	defer func() {
		if released := permit.Release(); errors.Is(released, ErrLost) {
			err = errors.Join(err, released)
		}
	}()
	return work(permit.Context(), permit)
}

// acquire repeats the request until it is granted or refused. Both results are nil if the work of a single flight is done.
func (c *Client) acquire(ctx context.Context, w *wanted) (*Permit, error) {
	begun := now()
	park := min(poll(w.ttl), w.wait)
	// The first request has its answer at once, so that the program learns its position.
	answered, mayArrive, longest := begun, false, time.Duration(0)
	giveUp := func(err error) (*Permit, error) {
		if mayArrive {
			_ = c.giveBack(w, false, cleanupTime)
		}
		return nil, err
	}
	var last error
	var pauses pauses
	for {
		if err := ctx.Err(); err != nil {
			cause := context.Cause(ctx)
			if last != nil {
				cause = fmt.Errorf("%w (last attempt: %v)", cause, last)
			}
			return giveUp(failed(err, w, cause))
		}
		answer, err := c.post(ctx, "acquire", w.request, longest, answerTime)
		// The requests to other servers are not awaited.
		mayArrive = mayArrive || (err != nil && !isUnsent(err)) || len(c.urls) > 1
		switch {
		case err == nil && answer.status >= http.StatusBadRequest:
			return giveUp(refusal("acquire", w, answer))
		case err == nil && answer.State == "held" && now() < answer.until(&answer.lease):
			return c.newPermit(ctx, w, answer), nil
		case err == nil && answer.State == "done":
			_ = c.giveBack(w, false, cleanupTime)
			return nil, nil
		case err == nil && answer.State == "queued":
			mayArrive, answered, longest, pauses.span = true, now(), park, 0
			w.Place = answer.Place
			c.onEvent(ctx, Event{Kind: EventWaiting, Name: w.name, Position: answer.Position})
			// The server's wait begins again after its restart.
			if answered.since(begun) > w.wait+c.unreachableAfter {
				return giveUp(failed(ErrTimedOut, w, errors.New("it was in use for as long as the request waited")))
			}
			continue
		case err == nil:
			err = errors.New("the answer came too late, or is not one of signalbox")
		}
		if now().since(answered) >= c.unreachableAfter || isUntrusted(err) {
			return giveUp(unreachable("acquire", w, err))
		}
		longest = 0 // A server without room for a request that waits answers this one.
		if ctx.Err() == nil {
			last = err
		}
		pauses.wait(ctx, nil, answerTime, err)
	}
}

func failed(kind error, w *wanted, cause error) error {
	return &Error{Kind: kind, text: fmt.Sprintf("cannot acquire %q: %v", w.name, cause), cause: cause}
}

// isUnsent says that no server has received the request.
func isUnsent(err error) bool {
	var network *net.OpError
	return isUntrusted(err) || (errors.As(err, &network) && network.Op == "dial")
}

// isUntrusted says that the certificate of the server is not trusted, so that repeating does not help.
func isUntrusted(err error) bool {
	var untrusted *tls.CertificateVerificationError
	return errors.As(err, &untrusted)
}
