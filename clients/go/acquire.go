package signalbox

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"
	"unicode/utf8"
)

// Option is a part of an acquire.
type Option func(*wanted)

// wanted is what an acquire asks for.
type wanted struct {
	request
	// claim is the claim that the options change.
	claim *claim
	// name is the first name.
	name  string
	names []string
	ttl   time.Duration
	wait  time.Duration
	// into names what the options are given to, and accepts has the kinds that apply there.
	into    string
	accepts kinds
	// err is the first fault of the options.
	err error
}

// kinds are kinds of options.
type kinds uint8

const (
	ofClaim   kinds = 1 << iota // [Maximum], [Resources], [Slot]
	ofNames                     // [Also]
	ofRequest                   // [TTL], [Label]
	ofQueue                     // [Wait], [QueueMax]
)

// option is an Option that is refused where its kind does not apply.
func option(kind kinds, name string, set func(*wanted)) Option {
	return func(w *wanted) {
		if w.accepts&kind == 0 {
			w.fail("%s does not apply to %s", name, w.into)
			return
		}
		set(w)
	}
}

func (w *wanted) fail(format string, arguments ...any) {
	if w.err == nil {
		w.err = misuse("cannot acquire %q: "+format, append([]any{w.name}, arguments...)...)
	}
}

// Maximum is how many resources of the name may be in use at once, 1 or more. A declared semaphore needs no maximum, since
// its capacity applies. All clients of a name that is not declared have to give the same maximum.
func Maximum(maximum uint32) Option {
	return option(ofClaim, "Maximum", func(w *wanted) { w.claim.Maximum = w.positive("Maximum", maximum) })
}

// Resources is how many resources of the name are acquired; 1 unless given.
func Resources(resources uint32) Option {
	return option(ofClaim, "Resources", func(w *wanted) { w.claim.Resources = w.positive("Resources", resources) })
}

// Slot asks for this slot of a declared semaphore with numbered slots; for any slot unless given.
func Slot(slot uint16) Option {
	return option(ofClaim, "Slot", func(w *wanted) { w.claim.Slot = &slot })
}

// Also acquires a further name in the same request: all names are granted, or none. Its options are [Maximum], [Resources]
// and [Slot].
func Also(name string, options ...Option) Option {
	return option(ofNames, "Also", func(w *wanted) {
		first := *w
		w.add(name)
		w.into, w.accepts = "a further name: give it to the acquire", ofClaim
		for _, option := range options {
			option(w)
		}
		w.claim, w.into, w.accepts = first.claim, first.into, first.accepts
	})
}

// TTL is how long the permit lasts when the client can no longer renew it: others get the resources this long after a crash. It
// is renewed several times in this time. The server's default, usually 30 s, unless given; at least 1 s. The server
// reduces a longer one to its session.max_ttl, usually an hour.
func TTL(ttl time.Duration) Option {
	return option(ofRequest, "TTL", func(w *wanted) {
		if ttl < shortestTTL {
			w.fail("TTL(%v) is too short: use %v or more", ttl, shortestTTL)
		}
		w.TTLMs = milliseconds(ttl)
		w.ttl = time.Duration(w.TTLMs) * time.Millisecond
	})
}

// Wait waits in the queue for this long if the resources are in use; not at all unless given. The server has a limit, a day by
// default.
func Wait(wait time.Duration) Option {
	return option(ofQueue, "Wait", func(w *wanted) {
		if wait < 0 {
			w.fail("Wait(%v) is negative: use 0 or more", wait)
		}
		w.WaitMs = milliseconds(wait)
		w.wait = time.Duration(w.WaitMs) * time.Millisecond
	})
}

// QueueMax does not wait if this many requests wait already.
func QueueMax(waiting uint32) Option {
	return option(ofQueue, "QueueMax", func(w *wanted) { w.QueueMax = &waiting })
}

// Label is a text of up to 255 bytes, such as the id of a job, that the server's listings show with the permit.
func Label(label string) Option {
	return option(ofRequest, "Label", func(w *wanted) {
		if len(label) > labelMax {
			w.fail("a label of %d bytes: use at most %d", len(label), labelMax)
		}
		w.request.Label, w.LabelHex = "", ""
		if utf8.ValidString(label) {
			w.request.Label = label
		} else {
			w.LabelHex = hex.EncodeToString([]byte(label))
		}
	})
}

func (w *wanted) add(name string) {
	if name == "" || len(name) > nameMax {
		w.fail("a name of %d bytes: use 1 to %d", len(name), nameMax)
	}
	w.names = append(w.names, name)
	w.claim = &claim{Name: name}
	if !utf8.ValidString(name) {
		w.claim = &claim{NameHex: hex.EncodeToString([]byte(name))}
	}
	w.Claims = append(w.Claims, w.claim)
}

func (w *wanted) positive(option string, number uint32) *uint32 {
	if number < 1 {
		w.fail("%s is %d: use 1 or more", option, number)
	}
	return &number
}

// The longest name and label, in bytes.
const (
	nameMax  = 65535
	labelMax = 255
)

// shortestTTL is the server's default session.min_ttl. A server would raise a shorter time to it.
const shortestTTL = time.Second

// milliseconds rounds up, so that only 0 becomes 0.
func milliseconds(span time.Duration) int64 {
	ms := int64(span / time.Millisecond)
	if span%time.Millisecond > 0 {
		ms++
	}
	return min(ms, math.MaxUint32)
}

// poll is how long a request may wait for a change of a lease with this time to live.
func poll(ttl time.Duration) time.Duration { return min(ttl/4, 20*time.Second) }

// Acquire acquires resources of a name, and waits for them if [Wait] is given. The permit is renewed until it is released, so
// release it in any case.
//
// The permit's context ends with ctx, so bound the wait with [Wait], and not with a ctx that ends before the work does. If ctx ends
// while Acquire waits, it releases what the server may have granted, which takes at most 2 s, and returns the cause.
//
// Errors are [ErrBusy], [ErrTimedOut], [ErrQueueFull], [ErrLost] (an administrator has canceled the wait or removed the name),
// [ErrUnreachable], [ErrNotPermitted] and [ErrMisuse].
func (c *Client) Acquire(ctx context.Context, name string, options ...Option) (*Permit, error) {
	return c.begin(ctx, &wanted{name: name, into: "Acquire", accepts: ofClaim | ofNames | ofRequest | ofQueue}, options)
}

// begin acquires what the options say.
func (c *Client) begin(ctx context.Context, w *wanted, options []Option) (*Permit, error) {
	if c == nil || c.transport == nil {
		return nil, misuse("cannot acquire %q: the client was not made by New", w.name)
	}
	w.ttl = 30 * time.Second
	w.add(w.name)
	if w.Share {
		one := uint32(1)
		w.claim.Maximum = &one
	}
	for _, option := range options {
		option(w)
	}
	if w.err != nil {
		return nil, w.err
	}
	key := make([]byte, 16)
	if _, err := rand.Read(key); err != nil {
		return nil, misuse("cannot acquire %q: no random numbers: %w", w.name, err)
	}
	w.Key = hex.EncodeToString(key)
	return c.acquire(ctx, w)
}

// TryAcquire is Acquire for a program that has something else to do if the resources are in use: then ok is false, and err
// is nil. It does not wait, so [Wait] and [QueueMax] are an [ErrMisuse].
func (c *Client) TryAcquire(ctx context.Context, name string, options ...Option) (permit *Permit, ok bool, err error) {
	w := &wanted{name: name, into: "TryAcquire, which does not wait: use Acquire", accepts: ofClaim | ofNames | ofRequest}
	permit, err = c.begin(ctx, w, options)
	if errors.Is(err, ErrBusy) {
		return nil, false, nil
	}
	return permit, err == nil, err
}

// Do acquires, calls work with the permit and its context, and releases, even if work panics. It returns the error of the acquire
// or of work. If the permit was lost before work returned, the error is also an [ErrLost].
func (c *Client) Do(ctx context.Context, name string, work func(context.Context, *Permit) error, options ...Option) (err error) {
	permit, err := c.Acquire(ctx, name, options...)
	if err != nil {
		return err
	}
	defer func() {
		var told *LostError
		if released := permit.Release(); errors.Is(released, ErrLost) && !(errors.As(err, &told) && told.Name == name) {
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
			return giveUp(c.refusal("acquire", w, answer))
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
				return giveUp(failed(ErrTimedOut, w, errors.New(timedOut(w))))
			}
			continue
		case err == nil:
			err = errors.New("the answer came too late, or is not one of signalbox")
		}
		if silent := now().since(answered); silent >= c.unreachableAfter || isHopeless(err) {
			return giveUp(c.unreachable("acquire", w, silent, err))
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
