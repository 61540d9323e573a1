package signalbox

import (
	"context"
	"time"
)

// Event says what has happened to a permit, or to the request for one.
type Event struct {
	Kind EventKind
	// Name is the name that was acquired.
	Name string
	// Position is the place in the queue, for [EventWaiting]: 1 is served next, 0 is being stored.
	Position int
	// Fence is the fencing token of the permit; 0 while the request waits.
	Fence uint64
	// TimeLeft is how long the permit is valid without another answer of the server.
	TimeLeft time.Duration
	// Reason is why the permit was lost, for [EventLost].
	Reason Reason
}

// EventKind is what has happened.
type EventKind string

const (
	// EventWaiting: the request waits in the queue. It is reported for each answer of the server.
	EventWaiting EventKind = "waiting"
	// EventAcquired: the permit is held.
	EventAcquired EventKind = "acquired"
	// EventRenewed: the permit is valid for longer.
	EventRenewed EventKind = "renewed"
	// EventRevoking: an administrator takes the permit away when TimeLeft is over.
	EventRevoking EventKind = "revoking"
	// EventLost: the permit is no longer held.
	EventLost EventKind = "lost"
	// EventReleased: the program has released the permit.
	EventReleased EventKind = "released"
)

// report tells the program what has happened to its permit.
func (p *Permit) report(kind EventKind) {
	event := Event{Kind: kind, Name: p.wanted.name, Fence: p.fence, TimeLeft: p.TimeLeft()}
	if kind == EventLost {
		event.Reason = p.lost.Reason
	}
	p.client.onEvent(context.WithoutCancel(p.ctx), event)
}
