package signalbox

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Permit holds resources until it is released or lost. All of its methods may be called by several goroutines.
type Permit struct {
	client *Client
	wanted *wanted
	ttl    time.Duration
	fence  uint64
	slots  [][]int

	ctx    context.Context
	cancel context.CancelCauseFunc
	// requests is the context of renewals; abort ends it.
	requests context.Context
	abort    context.CancelFunc
	// over is closed when the permit is lost or released, ended when the goroutine that renews it has ended.
	over, ended chan struct{}

	release  sync.Once
	released error

	// mutex guards what follows. It is not held while an event is reported.
	mutex sync.Mutex
	// until is the end of the validity.
	until moment
	// reason is why the permit is lost if it is lost at until.
	reason Reason
	// lost is not nil once the permit is lost or released.
	lost  *LostError
	timer *time.Timer
}

// The permit's context and its loss are checked at least this often, because timers stand still while the machine is suspended.
const watchTime = time.Second

// A permit that is released sooner costs the server no renewal.
const shortWork = 20 * time.Millisecond

// newPermit begins to renew the lease that an answer has granted.
func (c *Client) newPermit(ctx context.Context, w *wanted, answer *answer) *Permit {
	fence, _ := strconv.ParseUint(answer.Grant, 10, 64)
	p := &Permit{
		client: c, wanted: w, fence: fence, slots: answer.Slots,
		ttl:    time.Duration(answer.TTLMs) * time.Millisecond,
		until:  answer.until(&answer.lease),
		reason: ReasonExpired,
		over:   make(chan struct{}), ended: make(chan struct{}),
	}
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	p.requests, p.abort = context.WithCancel(context.Background())
	p.mutex.Lock()
	p.timer = time.AfterFunc(p.nextWatch(), p.watch)
	p.mutex.Unlock()
	p.report(EventAcquired)
	go p.keep()
	return p
}

// Context ends when the permit is released or lost, or when an administrator revokes it, and with the context of the acquire.
// [context.Cause] is then a [LostError], or the cause of the latter. A permit that is being revoked is valid for its grace
// period all the same ([Permit.TimeLeft]), so that the work can stop in order.
func (p *Permit) Context() context.Context { return p.ctx }

// Check reads the clock. It returns a [LostError] if the permit is lost or released, and nil if it is valid now.
func (p *Permit) Check() error {
	p.mutex.Lock()
	lost, isOver, reason := p.lost, now() >= p.until, p.reason
	p.mutex.Unlock()
	if lost == nil && isOver {
		lost = p.lose(reason)
	}
	if lost != nil {
		return lost
	}
	return nil
}

// TimeLeft is how long the permit is valid if no server answers from now on; 0 if it is lost or released.
func (p *Permit) TimeLeft() time.Duration {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.lost != nil {
		return 0
	}
	return max(p.until.since(now()), 0)
}

// Fence is the fencing token: the number of the grant, which is greater than those of all grants of the name before. Send it
// with each write to a store, and let the store refuse a lower one than it has seen. Of a permit for several names, it is the
// fencing token of the first name in the order of their bytes, if that name comes first in this order in all requests for it.
func (p *Permit) Fence() uint64 { return p.fence }

// Slots has the slots of the acquired name, if that is a declared semaphore with numbered slots.
func (p *Permit) Slots() []int { return p.slotsOf(0) }

// SlotsOf is Slots for one of several names.
func (p *Permit) SlotsOf(name string) []int {
	for index, other := range p.wanted.names {
		if other == name {
			return p.slotsOf(index)
		}
	}
	return nil
}

func (p *Permit) slotsOf(index int) []int {
	if index >= len(p.slots) {
		return nil
	}
	return append([]int(nil), p.slots[index]...)
}

// Release gives the resources back, so that others can get them at once. It takes at most some seconds, whatever context was
// canceled. It may be repeated, and returns the same again: a [LostError] if the permit was lost before, [ErrUnreachable] if
// no server has confirmed it, so that others get the resources only after the time to live; else nil. For a
// nil Permit, it is nil.
func (p *Permit) Release() error { return p.releaseAs(false) }

// ReleaseDone is [Permit.Release] for a permit of [Client.AcquireShared]: the result is there, and all that wait for it are informed.
// It fails with [ErrMisuse] for another permit, which stays held.
func (p *Permit) ReleaseDone() error {
	if p != nil && !p.wanted.Share {
		return misuse("the permit for %q is not one of AcquireShared: use Release", p.wanted.name)
	}
	return p.releaseAs(true)
}

func (p *Permit) releaseAs(done bool) error {
	if p == nil {
		return nil
	}
	_ = p.Check() // A loss that nothing has noticed yet comes first.
	isReleased := false
	p.release.Do(func() {
		own := &LostError{Name: p.wanted.name, Reason: ReasonReleased}
		if lost := p.finish(own); lost != own {
			p.released = lost
			return
		}
		p.released = p.client.giveBack(p.wanted, done, releaseTime)
		if p.released == nil {
			// The server answers the renewal that waits, so that its connection can be used again.
			select {
			case <-p.ended:
			case <-time.After(time.Second):
			}
		}
		p.abort()
		isReleased = true
	})
	if isReleased { // Outside of release, since OnEvent may call this again.
		p.report(EventReleased)
	}
	return p.released
}

// finish ends the permit with this error, unless it has ended before, and returns the error that it ended with.
func (p *Permit) finish(with *LostError) *LostError {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.lost == nil {
		p.lost = with
		p.timer.Stop()
		close(p.over)
		p.cancel(with)
	}
	return p.lost
}

// lose ends the permit because it is lost, unless it has ended before, and returns the error that it ended with.
func (p *Permit) lose(reason Reason) *LostError {
	lost := &LostError{Name: p.wanted.name, Reason: reason}
	if ended := p.finish(lost); ended != lost {
		return ended
	}
	p.abort()
	p.report(EventLost)
	return lost
}

// watch notices that the validity is over.
func (p *Permit) watch() {
	if p.Check() == nil {
		p.mutex.Lock()
		p.timer.Reset(p.nextWatch())
		p.mutex.Unlock()
	}
}

func (p *Permit) nextWatch() time.Duration { return min(p.until.since(now()), watchTime) }

// keep renews the lease until the permit is over or revoked. One request waits for a change all the time.
func (p *Permit) keep() {
	defer close(p.ended)
	select {
	case <-p.over:
		return
	case <-time.After(shortWork):
	}
	longest := poll(p.ttl)
	// So that a connection that has broken silently leaves time for another one.
	patience := min(p.ttl/3, answerTime)
	var pauses pauses
	for {
		renew := request{Keys: []string{p.wanted.Key}}
		answer, err := p.client.post(p.requests, "renew", renew, longest, patience)
		select {
		case <-p.over:
			if p.lost.Reason != ReasonReleased { // One of the renewals may still arrive.
				_ = p.client.giveBack(p.wanted, false, cleanupTime)
			}
			return
		default:
		}
		reason := ReasonUnreachable
		if err == nil && answer.status == http.StatusOK && len(answer.Leases) == 1 {
			lease := &answer.Leases[0]
			switch lease.State {
			case "held":
				p.extend(answer.until(lease))
				longest, pauses.span = poll(p.ttl), 0
				continue
			case "revoking":
				p.revoke(answer.until(lease))
				return
			case "not_permitted":
				reason = ReasonNotPermitted
			default:
				p.lose(Reason(or(lease.Reason, string(ReasonExpired))))
				return
			}
		} else if err == nil {
			reason = ReasonNotPermitted
		}
		p.fail(reason)
		if reason == ReasonNotPermitted {
			pauses.span = p.ttl // The server slows down a client that shows the same token again and again.
		}
		longest = 0 // A server without room for a request that waits answers this one.
		pauses.wait(p.requests, p.over, p.ttl/4, err)
	}
}

// extend moves the end of the validity.
func (p *Permit) extend(until moment) {
	p.mutex.Lock()
	p.until = max(p.until, until)
	p.reason = ReasonExpired
	p.mutex.Unlock()
	p.report(EventRenewed)
}

// revoke tells the program that an administrator takes the resources away at this time.
func (p *Permit) revoke(until moment) {
	p.mutex.Lock()
	p.until = until
	p.reason = ReasonRevoked
	p.timer.Reset(p.nextWatch())
	p.mutex.Unlock()
	p.cancel(&LostError{Name: p.wanted.name, Reason: ReasonRevoked})
	p.report(EventRevoking)
}

// fail records why the lease is not renewed. A reason that is found after the end of the lease does not count.
func (p *Permit) fail(reason Reason) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if now() < p.until {
		p.reason = reason
	}
}

// giveBack releases the key of a request, so that nothing is left of it, even if it arrives later. If done, the result of a
// single flight is there.
func (c *Client) giveBack(w *wanted, done bool, bound time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	begun := now()
	var pauses pauses
	for {
		answer, err := c.post(ctx, "release", request{Key: w.Key, Done: done}, 0, answerTime)
		switch {
		case err == nil && answer.status == http.StatusOK:
			return nil
		case err == nil:
			return c.refusal("release", w, answer)
		case ctx.Err() != nil:
			return c.unreachable("release", w, now().since(begun), err)
		}
		pauses.wait(ctx, nil, answerTime, err)
	}
}
