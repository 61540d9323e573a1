// Command driver runs the client for the conformance suite (conformance/README.md): it passes commands to the client and reports
// what the client says.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"time"

	signalbox "github.com/signalbox/signalbox/clients/go"
)

type command struct {
	ID     int    `json:"id"`
	Do     string `json:"do"`
	Permit string `json:"permit"`
	Claims []struct {
		Name      string  `json:"name"`
		Maximum   *uint32 `json:"maximum"`
		Resources *uint32 `json:"resources"`
	} `json:"claims"`
	TTLMs   int64 `json:"ttl_ms"`
	WaitMs  int64 `json:"wait_ms"`
	BlockMs int64 `json:"block_ms"`
	Stop    bool  `json:"stop"`
	Share   bool  `json:"share"`
	Done    bool  `json:"done"`
	Count   int   `json:"count"`
	Keep    bool  `json:"keep"`
}

type object map[string]any

// acquired is an acquire, and its permit once it is granted.
type acquired struct {
	cancel context.CancelFunc
	permit *signalbox.Permit
}

var (
	mutex  sync.Mutex // Guards what follows, and standard output.
	all    = map[string]*acquired{}
	client *signalbox.Client
	kept   []*signalbox.Permit
)

func say(line object) {
	mutex.Lock()
	defer mutex.Unlock()
	_ = json.NewEncoder(os.Stdout).Encode(line)
}

// permitKey is the key of a context for the permit that events are about.
type permitKey struct{}

func report(ctx context.Context, event signalbox.Event) {
	permit := ctx.Value(permitKey{})
	switch event.Kind {
	case signalbox.EventRevoking:
		say(object{"event": "revoking", "permit": permit, "grace_ms": event.TimeLeft.Milliseconds()})
	case signalbox.EventLost:
		say(object{"event": "lost", "permit": permit, "reason": event.Reason})
	}
}

func main() {
	var err error
	if client, err = signalbox.New(signalbox.Config{OnEvent: report}); err != nil {
		panic(err)
	}
	say(object{"driver": "go", "capabilities": []string{"cancel", "defaults", "pairs", "push", "renew", "share", "tls", "token"}})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var command command
		if err := json.Unmarshal(lines.Bytes(), &command); err != nil {
			panic(err)
		}
		if command.Do == "exit" {
			return
		}
		do(command)
	}
}

func do(command command) {
	mutex.Lock()
	this := all[command.Permit]
	mutex.Unlock()
	answer := object{}
	switch command.Do {
	case "acquire":
		ctx, cancel := context.WithCancel(context.WithValue(context.Background(), permitKey{}, command.Permit))
		this = &acquired{cancel: cancel}
		mutex.Lock()
		all[command.Permit] = this
		mutex.Unlock()
		go acquire(ctx, command, this)
		return
	case "pairs":
		answer["times_us"] = pairs(command)
	case "cancel":
		this.cancel()
	case "check":
		for end := time.Now().Add(time.Duration(command.BlockMs) * time.Millisecond); time.Now().Before(end); {
		}
		if command.Stop {
			runtime.LockOSThread() // A signal to the thread itself stops it before the call returns.
			_ = syscall.Tgkill(os.Getpid(), syscall.Gettid(), syscall.SIGSTOP)
		}
		answer = belief(this.permit)
	case "release":
		if this.permit != nil && command.Done {
			_ = this.permit.ReleaseDone()
		} else if this.permit != nil {
			_ = this.permit.Release()
		}
	}
	answer["id"] = command.ID
	say(answer)
}

// wanted is the first name of a command, and the options of its acquire.
func wanted(command command) (string, []signalbox.Option) {
	first, options := "", []signalbox.Option(nil)
	if command.TTLMs > 0 {
		options = append(options, signalbox.TTL(time.Duration(command.TTLMs)*time.Millisecond))
	}
	if command.WaitMs > 0 {
		options = append(options, signalbox.Wait(time.Duration(command.WaitMs)*time.Millisecond))
	}
	for index, claim := range command.Claims {
		var own []signalbox.Option
		if claim.Maximum != nil && !command.Share {
			own = append(own, signalbox.Maximum(*claim.Maximum))
		}
		if claim.Resources != nil {
			own = append(own, signalbox.Resources(*claim.Resources))
		}
		if index == 0 {
			first, options = claim.Name, append(options, own...)
		} else {
			options = append(options, signalbox.Also(claim.Name, own...))
		}
	}
	return first, options
}

// pairs acquires and releases one after the other, or keeps what it acquires, and returns how long each took in microseconds.
func pairs(command command) []int64 {
	first, options := wanted(command)
	times := []int64{}
	for range command.Count {
		began := time.Now()
		permit, err := client.Acquire(context.Background(), first, options...)
		if err == nil && command.Keep {
			kept = append(kept, permit)
		} else if err == nil {
			err = permit.Release()
		}
		if err != nil {
			panic(err)
		}
		times = append(times, time.Since(began).Microseconds())
	}
	debug.FreeOSMemory()
	return times
}

func acquire(ctx context.Context, command command, this *acquired) {
	first, options := wanted(command)
	permit, held, err := acquireOrShare(ctx, command.Share, first, options)
	if err != nil {
		say(object{"id": command.ID, "failure": failure(err)})
		return
	}
	if !held {
		say(object{"id": command.ID, "done": true})
		return
	}
	mutex.Lock()
	this.permit = permit
	mutex.Unlock()
	slots := [][]int{}
	for _, claim := range command.Claims {
		if own := permit.SlotsOf(claim.Name); own != nil {
			slots = append(slots, own)
		}
	}
	answer := belief(permit)
	answer["id"], answer["fence"], answer["slots"] = command.ID, strconv.FormatUint(permit.Fence(), 10), slots
	say(answer)
}

func acquireOrShare(ctx context.Context, share bool, name string, options []signalbox.Option) (*signalbox.Permit, bool, error) {
	if share {
		return client.AcquireShared(ctx, name, options...)
	}
	permit, err := client.Acquire(ctx, name, options...)
	return permit, err == nil, err
}

func belief(permit *signalbox.Permit) object {
	if permit == nil || permit.Check() != nil {
		return object{"held": false}
	}
	return object{"held": true, "left_ms": permit.TimeLeft().Milliseconds()}
}

func failure(err error) string {
	kinds := []struct {
		kind error
		name string
	}{
		{context.Canceled, "canceled"}, {signalbox.ErrBusy, "busy"}, {signalbox.ErrTimedOut, "timed_out"},
		{signalbox.ErrQueueFull, "queue_full"}, {signalbox.ErrLost, "lost"}, {signalbox.ErrUnreachable, "unreachable"},
		{signalbox.ErrNotPermitted, "not_permitted"}, {signalbox.ErrMisuse, "misuse"},
	}
	for _, each := range kinds {
		if errors.Is(err, each.kind) {
			return each.name
		}
	}
	return err.Error()
}
