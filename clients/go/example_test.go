package signalbox_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	signalbox "github.com/signalbox/signalbox/clients/go"
)

var ctx = context.Background()

func newClient() *signalbox.Client {
	client, err := signalbox.New(signalbox.Config{})
	if err != nil {
		panic(err)
	}
	return client
}

// At most two of all programs make reports at the same time.
func Example() {
	client, err := signalbox.New(signalbox.Config{}) // SIGNALBOX_URL has the server.
	if err != nil {
		panic(err)
	}
	permit, err := client.Acquire(ctx, "reports", signalbox.Maximum(2), signalbox.Wait(time.Minute))
	if err != nil {
		panic(err)
	}
	defer permit.Release()
	fmt.Println("held:", permit.Check() == nil)
	// Output: held: true
}

// A worker pool over many machines: each worker works only while it holds one of three places, and waits for one in a
// queue of at most 100.
func ExampleClient_Do_workerPool() {
	client := newClient()
	var workers sync.WaitGroup
	var mutex sync.Mutex
	busy, most, done := 0, 0, 0
	work := func(ctx context.Context, permit *signalbox.Permit) error {
		mutex.Lock()
		busy++
		most = max(most, busy)
		mutex.Unlock()
		// The job watches ctx, which ends when the place is lost.
		time.Sleep(time.Millisecond)
		mutex.Lock()
		busy, done = busy-1, done+1
		mutex.Unlock()
		return ctx.Err()
	}
	for job := range 12 {
		workers.Add(1)
		go func() {
			defer workers.Done()
			err := client.Do(ctx, "pool/render", work, signalbox.Maximum(3), signalbox.Wait(time.Hour),
				signalbox.QueueMax(100), signalbox.Label(fmt.Sprint("job ", job)))
			if err != nil {
				fmt.Println(err)
			}
		}()
	}
	workers.Wait()
	fmt.Println(done, "jobs done, never more than three at once:", most <= 3)
	// Output: 12 jobs done, never more than three at once: true
}

// A job that is in the crontab of each machine: the first machine runs it, and the others have nothing to do.
func ExampleClient_TryAcquire_cron() {
	first, ok, err := newClient().TryAcquire(ctx, "nightly-report", signalbox.Maximum(1), signalbox.Label("machine 1"))
	if err != nil {
		panic(err) // Such as signalbox.ErrUnreachable: nothing runs.
	}
	defer first.Release()
	fmt.Println("machine 1 runs the job:", ok)

	_, ok, err = newClient().TryAcquire(ctx, "nightly-report", signalbox.Maximum(1), signalbox.Label("machine 2"))
	fmt.Println("machine 2 runs the job:", ok, err)
	// Output:
	// machine 1 runs the job: true
	// machine 2 runs the job: false <nil>
}

// A leader acts until it is lost, revoked or stopped, and the next one takes over.
func ExampleClient_Acquire_leader() {
	lead := func(ctx context.Context, client *signalbox.Client, term func(context.Context, uint64)) error {
		for {
			permit, err := client.Acquire(ctx, "scheduler/leader", signalbox.Maximum(1), signalbox.Wait(24*time.Hour), signalbox.TTL(15*time.Second))
			switch {
			case errors.Is(err, signalbox.ErrTimedOut), errors.Is(err, signalbox.ErrUnreachable):
				continue // Both took their time.
			case err != nil:
				return err
			}
			term(permit.Context(), permit.Fence()) // Sends the fencing token with each write, and returns when its context ends.
			_ = permit.Release()
		}
	}
	ctx, stop := context.WithCancel(ctx)
	err := lead(ctx, newClient(), func(ctx context.Context, fence uint64) {
		fmt.Println("leads")
		stop()
		<-ctx.Done()
		fmt.Println("leads no longer:", context.Cause(ctx))
	})
	fmt.Println(errors.Is(err, context.Canceled))
	// Output:
	// leads
	// leads no longer: context canceled
	// true
}

// Each job gets its own of several numbered things. An administrator has declared them:
// signalbox declare port --capacity 4 --slots
func ExamplePermit_Slots() {
	permit, err := newClient().Acquire(ctx, "port", signalbox.Wait(time.Minute))
	if errors.Is(err, signalbox.ErrMisuse) {
		fmt.Println("nobody has declared it")
		return
	}
	defer permit.Release()
	fmt.Println("port", 8000+permit.Slots()[0])
	// Output: port 8000
}

// Two GPUs and a licence, all or none, without deadlocks.
func ExampleAlso() {
	permit, err := newClient().Acquire(ctx, "gpus", signalbox.Maximum(8), signalbox.Resources(2),
		signalbox.Also("licence", signalbox.Maximum(1)), signalbox.Wait(time.Minute))
	if err != nil {
		panic(err)
	}
	defer permit.Release()
	fmt.Println("held:", permit.Check() == nil)
	// Output: held: true
}

// Of many programs that need the same page at once, one renders it, and the others wait for it.
func ExampleClient_Share() {
	client := newClient()
	var cache sync.Map // Stands for one that all programs share.
	rendered := 0
	page := func() (page any, err error) {
		err = client.Share(ctx, "page/42",
			func(context.Context) (found bool, err error) {
				page, found = cache.Load(42)
				return found, nil
			},
			func(ctx context.Context, permit *signalbox.Permit) error {
				rendered++
				page = "the page"
				cache.Store(42, page)
				return nil
			},
			signalbox.Wait(10*time.Second))
		return page, err
	}
	var readers sync.WaitGroup
	for range 5 {
		readers.Add(1)
		go func() {
			defer readers.Done()
			if page, err := page(); page != "the page" {
				fmt.Println(page, err)
			}
		}()
	}
	readers.Wait()
	fmt.Println("rendered", rendered, "time")
	// Output: rendered 1 time
}

// reports stands for a table: report(id, text, fence).
type reports struct {
	mutex sync.Mutex
	text  string
	fence uint64
}

// write does what UPDATE report SET text = $1, fence = $2 WHERE id = 1 AND fence <= $2 does: it returns the number of rows that
// have changed. Comparing and writing is one step.
func (r *reports) write(text string, fence uint64) (rows int) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if fence < r.fence {
		return 0
	}
	r.text, r.fence = text, fence
	return 1
}

// A store that two writers would harm checks the fencing token with each write. So a writer that was stopped, and continues
// after another one took over, changes nothing.
func ExamplePermit_Fence() {
	client, table := newClient(), &reports{}
	acquire := func() *signalbox.Permit {
		permit, err := client.Acquire(ctx, "report", signalbox.Maximum(1), signalbox.Wait(time.Minute))
		if err != nil {
			panic(err)
		}
		return permit
	}
	stopped := acquire()
	_ = stopped.Release() // Stands for its loss.
	successor := acquire()
	defer successor.Release()
	fmt.Println("successor:", table.write("new", successor.Fence()))
	fmt.Println("stopped writer:", table.write("old", stopped.Fence()))
	fmt.Println(table.text)
	// Output:
	// successor: 1
	// stopped writer: 0
	// new
}

// Events become log lines, metrics or spans. The context is that of Acquire, so a span of it is the parent.
func ExampleConfig_events() {
	client, err := signalbox.New(signalbox.Config{OnEvent: func(ctx context.Context, event signalbox.Event) {
		switch event.Kind {
		case signalbox.EventAcquired, signalbox.EventReleased, signalbox.EventLost:
			fmt.Println(event.Kind, event.Name)
		}
	}})
	if err != nil {
		panic(err)
	}
	err = client.Do(ctx, "backup", func(context.Context, *signalbox.Permit) error { return nil }, signalbox.Maximum(1))
	fmt.Println(err)
	// Output:
	// acquired backup
	// released backup
	// <nil>
}
