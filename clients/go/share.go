package signalbox

import "context"

// AcquireShared acquires a name for a single flight, for programs that do not use [Client.Share]. If held is true, the program
// makes the result while it has the permit, and ends with [Permit.ReleaseDone]. If held is false and err is nil, another program
// has made the result while this one waited, and nothing is held. Options are [Wait], [TTL], [QueueMax] and [Label]; others
// are an [ErrMisuse].
func (c *Client) AcquireShared(ctx context.Context, name string, options ...Option) (permit *Permit, held bool, err error) {
	w := &wanted{name: name, into: "a single flight", accepts: ofRequest | ofQueue}
	w.Share = true
	permit, err = c.begin(ctx, w, options)
	return permit, permit != nil, err
}

// Share is a single flight: of many programs that need the same result, one makes it, and the others wait for it. find says
// whether the result is there. build makes it with the permit and its context, and puts it where find looks; if it fails or panics,
// another program makes the result. Options are those of [Client.AcquireShared]. It returns the error of the acquire, or that of
// find or build.
func (c *Client) Share(ctx context.Context, name string, find func(context.Context) (bool, error), build func(context.Context, *Permit) error, options ...Option) error {
	for {
		if found, err := find(ctx); found || err != nil {
			return err
		}
		permit, held, err := c.AcquireShared(ctx, name, options...)
		if err != nil {
			return err
		}
		if held {
			return buildMissing(permit, find, build)
		}
	}
}

// buildMissing makes a result, unless another program has made it before the permit was held.
func buildMissing(permit *Permit, find func(context.Context) (bool, error), build func(context.Context, *Permit) error) error {
	defer permit.Release()
	found, err := find(permit.Context())
	if !found && err == nil {
		err = build(permit.Context(), permit)
	}
	if err == nil {
		_ = permit.ReleaseDone() // The result is there, even if the permit was lost.
	}
	return err
}
