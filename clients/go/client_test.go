package signalbox_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	signalbox "github.com/signalbox/signalbox/clients/go"
)

func TestAPermitIsHeldUntilItIsReleased(t *testing.T) {
	server := newServer(t)
	client := server.client(t, signalbox.Config{})
	first := acquire(t, client, "a", signalbox.Label("job 7"))
	if err := first.Check(); err != nil || first.TimeLeft() <= 0 || first.Fence() == 0 || first.Context().Err() != nil {
		t.Fatal(err, first.TimeLeft(), first.Fence())
	}
	_, err := client.Acquire(context.Background(), "a", signalbox.Maximum(1))
	wantError(t, err, signalbox.ErrBusy)
	if permit, ok, err := client.TryAcquire(context.Background(), "a", signalbox.Maximum(1)); permit != nil || ok || err != nil {
		t.Fatal(permit, ok, err)
	}
	for range 2 {
		if err := first.Release(); err != nil {
			t.Fatal(err)
		}
	}
	wantReason(t, closed(t, first.Context()), signalbox.ReasonReleased)
	wantError(t, first.Check(), signalbox.ErrLost)
	if first.TimeLeft() != 0 {
		t.Fatal(first.TimeLeft())
	}
	second, ok, err := client.TryAcquire(context.Background(), "a", signalbox.Maximum(1))
	if err != nil || !ok || second.Fence() <= first.Fence() {
		t.Fatal(ok, err)
	}
	if err := second.Release(); err != nil || server.sessions(t) != 0 {
		t.Fatal(err, server.sessions(t))
	}
}

func TestFailuresAreDistinct(t *testing.T) {
	server := newServer(t)
	client := server.client(t, signalbox.Config{})
	acquire(t, client, "a")
	background := context.Background()
	for _, each := range []struct {
		options []signalbox.Option
		want    error
	}{
		{[]signalbox.Option{signalbox.Maximum(1)}, signalbox.ErrBusy},
		{[]signalbox.Option{signalbox.Maximum(1), signalbox.Wait(time.Millisecond)}, signalbox.ErrTimedOut},
		{[]signalbox.Option{signalbox.Maximum(1), signalbox.Wait(time.Hour), signalbox.QueueMax(0)}, signalbox.ErrQueueFull},
		{[]signalbox.Option{}, signalbox.ErrMisuse},
		{[]signalbox.Option{signalbox.Maximum(1), signalbox.Resources(2)}, signalbox.ErrMisuse},
		{[]signalbox.Option{signalbox.Maximum(1), signalbox.TTL(0)}, signalbox.ErrMisuse},
		{[]signalbox.Option{signalbox.Maximum(1), signalbox.TTL(30)}, signalbox.ErrMisuse},
		{[]signalbox.Option{signalbox.Maximum(1), signalbox.TTL(999 * time.Millisecond)}, signalbox.ErrMisuse},
		{[]signalbox.Option{signalbox.Maximum(0)}, signalbox.ErrMisuse},
		{[]signalbox.Option{signalbox.Maximum(1), signalbox.Resources(0)}, signalbox.ErrMisuse},
		{[]signalbox.Option{signalbox.Maximum(1), signalbox.Wait(-1)}, signalbox.ErrMisuse},
		{[]signalbox.Option{signalbox.Maximum(1), signalbox.Label(strings.Repeat("x", 256))}, signalbox.ErrMisuse},
		{[]signalbox.Option{signalbox.Maximum(1), signalbox.Also("a", signalbox.Maximum(1))}, signalbox.ErrMisuse},
	} {
		_, err := client.Acquire(background, "a", each.options...)
		wantError(t, err, each.want)
	}
	server.command(t, "declare", "paused", "--capacity", "1")
	server.command(t, "pause", "paused")
	_, err := client.Acquire(background, "paused")
	var refused *signalbox.Error
	if wantError(t, err, signalbox.ErrBusy); !errors.As(err, &refused) || refused.Code != "paused" {
		t.Fatal(err)
	}
}

func TestATimeOutSaysHowLongItWaited(t *testing.T) {
	client := newServer(t).client(t, signalbox.Config{})
	acquire(t, client, "a")
	_, err := client.Acquire(context.Background(), "a", signalbox.Maximum(1), signalbox.Wait(60))
	if wantError(t, err, signalbox.ErrTimedOut); !strings.Contains(err.Error(), "1ms") {
		t.Fatal(err)
	}
}

// Each of these succeeded without the option.
func TestAnOptionThatDoesNotApplyIsAMisuse(t *testing.T) {
	client := newServer(t).client(t, signalbox.Config{})
	background, one := context.Background(), signalbox.Maximum(1)
	for _, option := range []signalbox.Option{
		signalbox.Wait(time.Second), signalbox.QueueMax(1), signalbox.TTL(time.Minute), signalbox.Label("b"), signalbox.Also("c", one),
	} {
		_, err := client.Acquire(background, "a", one, signalbox.Also("b", one, option))
		wantError(t, err, signalbox.ErrMisuse)
	}
	for _, option := range []signalbox.Option{signalbox.Wait(time.Second), signalbox.QueueMax(1)} {
		_, _, err := client.TryAcquire(background, "a", one, option)
		wantError(t, err, signalbox.ErrMisuse)
	}
	for _, option := range []signalbox.Option{signalbox.Maximum(3), signalbox.Resources(1), signalbox.Also("b", one)} {
		_, _, err := client.AcquireShared(background, "a", option)
		wantError(t, err, signalbox.ErrMisuse)
	}
}

func TestWhatWasNotMadeIsNoPanic(t *testing.T) {
	var none *signalbox.Permit
	if err := errors.Join(none.Release(), none.ReleaseDone()); err != nil {
		t.Fatal(err)
	}
	for _, client := range []*signalbox.Client{nil, {}} {
		_, err := client.Acquire(context.Background(), "a", signalbox.Maximum(1))
		wantError(t, err, signalbox.ErrMisuse)
	}
}

func TestAWaitingAcquireIsServedAndReportsItsPosition(t *testing.T) {
	server := newServer(t)
	positions := make(chan int, 100)
	client := server.client(t, signalbox.Config{OnEvent: func(_ context.Context, event signalbox.Event) {
		if event.Kind == signalbox.EventWaiting {
			positions <- event.Position
		}
	}})
	first := acquire(t, client, "a")
	second := make(chan error, 1)
	go func() {
		// Requests of a lease of 1 s wait for a quarter of it, so the first answer comes soon.
		permit, err := client.Acquire(context.Background(), "a", signalbox.Maximum(1), signalbox.Wait(time.Hour), signalbox.TTL(time.Second))
		if err == nil {
			err = permit.Release()
		}
		second <- err
	}()
	if position := next(t, positions); position != 1 {
		t.Fatal(position)
	}
	if err := first.Release(); err != nil {
		t.Fatal(err)
	}
	if err := next(t, second); err != nil {
		t.Fatal(err)
	}
}

func TestSeveralNamesAreAllGrantedOrNone(t *testing.T) {
	server := newServer(t)
	client := server.client(t, signalbox.Config{})
	server.command(t, "declare", "gpu", "--capacity", "4", "--slots")
	other := acquire(t, client, "licence")
	both := func() (*signalbox.Permit, error) {
		return client.Acquire(context.Background(), "gpu", signalbox.Resources(2), signalbox.Also("licence", signalbox.Maximum(1)))
	}
	_, err := both()
	wantError(t, err, signalbox.ErrBusy)
	if err := other.Release(); err != nil {
		t.Fatal(err)
	}
	permit, err := both()
	if err != nil {
		t.Fatal(err)
	}
	if slots := permit.Slots(); len(slots) != 2 || !reflect.DeepEqual(slots, permit.SlotsOf("gpu")) || permit.SlotsOf("licence") == nil && permit.SlotsOf("other") != nil {
		t.Fatal(slots)
	}
	if err := permit.Release(); err != nil {
		t.Fatal(err)
	}
	third, err := client.Acquire(context.Background(), "gpu", signalbox.Slot(3))
	if err != nil || !reflect.DeepEqual(third.Slots(), []int{3}) {
		t.Fatal(err)
	}
	_, err = client.Acquire(context.Background(), "gpu", signalbox.Slot(3))
	wantError(t, err, signalbox.ErrBusy)
	if err := third.Release(); err != nil {
		t.Fatal(err)
	}
}

func TestNamesAreBytes(t *testing.T) {
	server := newServer(t)
	client := server.client(t, signalbox.Config{})
	name := "a\xff\x00"
	acquire(t, client, name, signalbox.Label("\xfe"))
	_, err := client.Acquire(context.Background(), name, signalbox.Maximum(1))
	wantError(t, err, signalbox.ErrBusy)
	acquire(t, client, "a\ufffd\x00")
}

func TestDoReleasesAndJoinsErrors(t *testing.T) {
	server := newServer(t)
	client := server.client(t, signalbox.Config{})
	background := context.Background()
	one := signalbox.Maximum(1)
	if err := client.Do(background, "a", func(ctx context.Context, permit *signalbox.Permit) error { return permit.Check() }, one); err != nil {
		t.Fatal(err)
	}
	failure := errors.New("failure")
	if err := client.Do(background, "a", func(context.Context, *signalbox.Permit) error { return failure }, one); err != failure {
		t.Fatal(err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = client.Do(background, "a", func(context.Context, *signalbox.Permit) error { panic(failure) }, one)
	}()
	err := client.Do(background, "a", func(ctx context.Context, permit *signalbox.Permit) error {
		server.command(t, "revoke", "--grant", fmt.Sprint(permit.Fence()), "--grace", "0")
		<-ctx.Done()
		eventually(t, "the permit is lost", func() bool { return permit.Check() != nil })
		return failure
	}, one)
	wantError(t, err, failure)
	wantError(t, err, signalbox.ErrLost)
	err = client.Do(background, "a", func(ctx context.Context, permit *signalbox.Permit) error {
		server.command(t, "revoke", "--grant", fmt.Sprint(permit.Fence()), "--grace", "0")
		<-ctx.Done()
		eventually(t, "the permit is lost", func() bool { return permit.Check() != nil })
		return context.Cause(ctx)
	}, one)
	var lost *signalbox.LostError
	if !errors.As(err, &lost) || err.Error() != lost.Error() {
		t.Fatal("the loss is reported twice:", err)
	}
	if server.holders(t, "a") != 0 {
		t.Fatal("it is held")
	}
}

func TestOfThoseThatNeedAResultOneMakesIt(t *testing.T) {
	server := newServer(t)
	client := server.client(t, signalbox.Config{})
	background := context.Background()
	var made atomic.Int64
	find := func(context.Context) (bool, error) { return made.Load() > 0, nil }
	share := func(build func(context.Context, *signalbox.Permit) error, wait time.Duration) <-chan error {
		ended := make(chan error, 1)
		go func() { ended <- client.Share(background, "a", find, build, signalbox.Wait(wait)) }()
		return ended
	}
	// A failure passes the work on.
	failure, fail := errors.New("failure"), make(chan struct{})
	failing := share(func(context.Context, *signalbox.Permit) error { <-fail; return failure }, 0)
	eventually(t, "one works", func() bool { return server.holders(t, "a") == 1 })
	build := func(context.Context, *signalbox.Permit) error {
		eventually(t, "the others wait", func() bool { return server.waiters(t, "a") == 2 })
		made.Add(1)
		return nil
	}
	wantError(t, next(t, share(build, time.Millisecond)), signalbox.ErrTimedOut)
	var all []<-chan error
	for range 3 {
		all = append(all, share(build, time.Hour))
	}
	eventually(t, "the others wait", func() bool { return server.waiters(t, "a") == 3 })
	close(fail)
	wantError(t, next(t, failing), failure)
	for _, ended := range all {
		if err := next(t, ended); err != nil {
			t.Fatal(err)
		}
	}
	if err := next(t, share(build, 0)); err != nil || made.Load() != 1 || server.sessions(t) != 0 {
		t.Fatal(err, made.Load(), server.sessions(t))
	}
}

func TestOnlyASharedPermitIsReleasedAsDone(t *testing.T) {
	server := newServer(t)
	client := server.client(t, signalbox.Config{})
	permit := acquire(t, client, "a")
	wantError(t, permit.ReleaseDone(), signalbox.ErrMisuse)
	if err := errors.Join(permit.Check(), permit.Release()); err != nil {
		t.Fatal(err)
	}
	permit, held, err := client.AcquireShared(context.Background(), "a")
	if err != nil || !held {
		t.Fatal(held, err)
	}
	if err := errors.Join(permit.ReleaseDone(), permit.ReleaseDone()); err != nil || server.sessions(t) != 0 {
		t.Fatal(err)
	}
}

func TestAContextOfTheCallerEndsThePermitsContextButNotThePermit(t *testing.T) {
	server := newServer(t)
	client := server.client(t, signalbox.Config{})
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(context.Background())
	permit, err := client.Acquire(ctx, "a", signalbox.Maximum(1))
	if err != nil {
		t.Fatal(err)
	}
	cancel(stop)
	wantError(t, closed(t, permit.Context()), stop)
	if err := permit.Check(); err != nil {
		t.Fatal(err)
	}
	if err := permit.Release(); err != nil || server.sessions(t) != 0 {
		t.Fatal(err)
	}
	_, err = client.Acquire(ctx, "a", signalbox.Maximum(1))
	wantError(t, err, stop)
	wantError(t, err, context.Canceled)
}

func TestALeaseIsRenewedForLongerThanItsTimeToLive(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	renewed := make(chan time.Duration, 100)
	client := server.client(t, signalbox.Config{OnEvent: func(_ context.Context, event signalbox.Event) {
		if event.Kind == signalbox.EventRenewed {
			renewed <- event.TimeLeft
		}
	}})
	permit := acquire(t, client, "a", signalbox.TTL(4*time.Second))
	for range 6 {
		if left := next(t, renewed); left <= 0 || left > 4*time.Second {
			t.Fatal(left)
		}
	}
	if err := permit.Check(); err != nil {
		t.Fatal(err)
	}
}

func TestARevocationEndsTheContextAtOnceAndThePermitAfterItsGracePeriod(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	events := make(chan signalbox.Event, 100)
	client := server.client(t, signalbox.Config{OnEvent: func(_ context.Context, event signalbox.Event) { events <- event }})
	permit := acquire(t, client, "a")
	server.command(t, "revoke", "--grant", fmt.Sprint(permit.Fence()), "--grace", "2")
	wantReason(t, closed(t, permit.Context()), signalbox.ReasonRevoked)
	if left := permit.TimeLeft(); left > 2*time.Second {
		t.Fatal(left)
	}
	eventually(t, "the permit is lost", func() bool { return permit.Check() != nil })
	wantReason(t, permit.Check(), signalbox.ReasonRevoked)
	wantReason(t, permit.Release(), signalbox.ReasonRevoked)
	var kinds []signalbox.EventKind
	for len(events) > 0 {
		kinds = append(kinds, (<-events).Kind)
	}
	if want := []signalbox.EventKind{signalbox.EventAcquired, signalbox.EventRevoking, signalbox.EventLost}; !reflect.DeepEqual(kinds, want) {
		t.Fatal(kinds)
	}
}

func TestARevokedPermitIsReleasedWithinItsGracePeriod(t *testing.T) {
	server := newServer(t)
	client := server.client(t, signalbox.Config{})
	permit := acquire(t, client, "a")
	server.command(t, "revoke", "--grant", fmt.Sprint(permit.Fence()), "--grace", "1h")
	wantReason(t, closed(t, permit.Context()), signalbox.ReasonRevoked)
	if err := permit.Check(); err != nil {
		t.Fatal(err)
	}
	if err := permit.Release(); err != nil || server.holders(t, "a") != 0 {
		t.Fatal(err)
	}
}

// Each answered request was sent before the end of the server, so no permit may be valid for longer than a lease less its margin
// after that.
func TestADeadServerLosesPermitsInTime(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			server := newServer(t)
			client := server.client(t, signalbox.Config{UnreachableAfter: 100 * time.Millisecond})
			const ttl = 2 * time.Second
			permit := acquire(t, client, "a", signalbox.TTL(ttl))
			server.signal(t, signal)
			eventually(t, "the server does not answer", func() bool { return !server.answers() })
			end := time.Now().Add(ttl * 96 / 100)
			asked := time.Now()
			left := permit.TimeLeft()
			for read := time.Now(); permit.Check() == nil; read = time.Now() {
				if read.After(end) {
					t.Fatal("the permit is valid after the end of its lease")
				}
			}
			if early := left - time.Since(asked); early > time.Millisecond {
				t.Fatal("the permit was lost too early by", early)
			}
			wantReason(t, permit.Check(), signalbox.ReasonUnreachable)
			wantReason(t, closed(t, permit.Context()), signalbox.ReasonUnreachable)
			_, err := client.Acquire(context.Background(), "a", signalbox.Maximum(1))
			wantError(t, err, signalbox.ErrUnreachable)
		})
	}
}

func TestAReleaseWithoutAServerIsBounded(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	client := server.client(t, signalbox.Config{})
	permit := acquire(t, client, "a", signalbox.TTL(time.Hour))
	server.signal(t, syscall.SIGSTOP)
	eventually(t, "the server does not answer", func() bool { return !server.answers() })
	released := make(chan error, 1)
	go func() { released <- permit.Release() }()
	wantError(t, next(t, released), signalbox.ErrUnreachable)
}

func TestAnEventMayReleaseThePermitThatItIsAbout(t *testing.T) {
	var permit *signalbox.Permit
	released := make(chan error, 2)
	client := newServer(t).client(t, signalbox.Config{OnEvent: func(_ context.Context, event signalbox.Event) {
		if event.Kind == signalbox.EventReleased {
			released <- permit.Release()
		}
	}})
	permit, err := client.Acquire(context.Background(), "a", signalbox.Maximum(1))
	if err != nil {
		t.Fatal(err)
	}
	go func() { released <- permit.Release() }()
	for range 2 {
		if err := next(t, released); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAClientKeepsItsPermitOverARestart(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := fmt.Sprint(listener.Addr().(*net.TCPAddr).Port)
	listener.Close()
	options := []string{"--data-dir", directory, "--http-port", port}
	first, stop, err := start(options...)
	if err != nil {
		t.Fatal(err)
	}
	events := make(chan signalbox.EventKind, 100)
	client := first.client(t, signalbox.Config{OnEvent: func(_ context.Context, event signalbox.Event) { events <- event.Kind }})
	permit := acquire(t, client, "a", signalbox.TTL(20*time.Second))
	stop()
	second, stop, err := start(options...)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for next(t, events) != signalbox.EventRenewed {
	}
	if err := permit.Check(); err != nil || second.holders(t, "a") != 1 {
		t.Fatal(err)
	}
}

func TestTheServerThatAnswersIsFoundAmongSeveral(t *testing.T) {
	server := newServer(t)
	refused, err := net.Listen("tcp", "127.0.0.1:0") // Its connections are accepted and never answered.
	if err != nil {
		t.Fatal(err)
	}
	defer refused.Close()
	standby := newStandby(t)
	var failing sync.Map
	proxy := front(t, server, func(_ string, pass func() *http.Response, give func(*http.Response)) {
		if _, is := failing.Load("first"); is {
			give(nil)
		}
		give(pass())
	})
	client := server.client(t, signalbox.Config{URLs: []string{"http://" + refused.Addr().String(), "http://127.0.0.1:1", standby, proxy, server.url}})
	permit := acquire(t, client, "a", signalbox.TTL(10*time.Second))
	failing.Store("first", true)
	_, err = client.Acquire(context.Background(), "a", signalbox.Maximum(1))
	wantError(t, err, signalbox.ErrBusy)
	if err := permit.Release(); err != nil || server.holders(t, "a") != 0 {
		t.Fatal(err)
	}
}

// newStandby answers as a node of a cluster that another node leads.
func newStandby(t *testing.T) string {
	answer := `{"error": {"code": "not_serving", "message": "another node leads"}}`
	return handler(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(answer))
	})
}

func TestADeadlineOfTheCallerSaysWhatWasTried(t *testing.T) {
	client, err := signalbox.New(signalbox.Config{URLs: []string{"http://127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_, err = client.Acquire(ctx, "a", signalbox.Maximum(1), signalbox.Wait(math.MaxInt64))
	if wantError(t, err, context.DeadlineExceeded); !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Fatal(err)
	}
}

// The counter port has another protocol, and the HTTP port no TLS.
func TestAServerThatCannotBeTheRightOneIsNotTriedAgain(t *testing.T) {
	server := newServer(t)
	for _, url := range []string{"http://" + server.counter, "https://" + server.counter, strings.Replace(server.url, "http", "https", 1)} {
		client := server.client(t, signalbox.Config{URLs: []string{url}, UnreachableAfter: time.Hour})
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, err := client.Acquire(ctx, "a", signalbox.Maximum(1))
		if wantError(t, err, signalbox.ErrMisuse); !strings.Contains(err.Error(), "--http-port") {
			t.Fatal(err)
		}
	}
	// A path that is not one of the server, for a name that has its Maximum.
	elsewhere := server.client(t, signalbox.Config{URLs: []string{server.url + "/elsewhere"}})
	_, err := elsewhere.Acquire(context.Background(), "a", signalbox.Maximum(1))
	if wantError(t, err, signalbox.ErrMisuse); !strings.Contains(err.Error(), "/elsewhere") {
		t.Fatal(err)
	}
	// One of several may be wrong.
	client := server.client(t, signalbox.Config{URLs: []string{"http://" + server.counter, server.url}})
	acquire(t, client, "a")
}

func TestAURLWithoutAPortIsExplained(t *testing.T) {
	client, err := signalbox.New(signalbox.Config{URLs: []string{"http://127.0.0.99"}, UnreachableAfter: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Acquire(context.Background(), "a", signalbox.Maximum(1))
	if wantError(t, err, signalbox.ErrUnreachable); !strings.Contains(err.Error(), "11217") {
		t.Fatal(err)
	}
}

func TestTheConfigurationIsChecked(t *testing.T) {
	empty, lines := filepath.Join(t.TempDir(), "empty"), filepath.Join(t.TempDir(), "lines")
	write(t, empty, "")
	write(t, lines, "one\ntwo\n")
	for _, config := range []signalbox.Config{
		{URLs: []string{"lock.example.org:11217"}},
		{URLs: []string{"127.0.0.1:11217"}},
		{URLs: []string{"user:secret@127.0.0.1:11217"}},
		{URLs: []string{"http://127.0.0.1:11217,"}},
		{URLs: []string{"ftp://lock.example.org"}},
		{URLs: []string{"http://"}},
		{URLs: []string{"http://user:secret@lock.example.org"}},
		{URLs: []string{"http://user:secret@lock.example.org:port"}},
		{URLs: []string{"http://192.0.2.1:11217"}, Token: "secret"},
		{TokenFile: "/does/not/exist"},
		{TokenFile: empty},
		{TokenFile: lines},
		{TokenFile: lines, Token: "secret"},
		{Token: "sec\nret"},
		{Token: "\n"},
		{CA: "/does/not/exist"},
		{CA: empty},
	} {
		_, err := signalbox.New(config)
		if wantError(t, err, signalbox.ErrMisuse); strings.Contains(err.Error(), "secret") {
			t.Fatal(err)
		}
	}
	for _, config := range []signalbox.Config{
		{},
		{URLs: []string{"http://192.0.2.1:11217"}, Token: "secret", TokenOverPlain: true},
		{URLs: []string{"https://192.0.2.1:11217", "http://[::1]:11217", "http://localhost"}, Token: "secret\r\n"},
	} {
		if _, err := signalbox.New(config); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTheEnvironmentIsRead(t *testing.T) {
	server := newServer(t)
	t.Setenv("SIGNALBOX_URL", "http://127.0.0.1:1, "+server.url)
	client, err := signalbox.New(signalbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := acquire(t, client, "a").Release(); err != nil {
		t.Fatal(err)
	}
	client.CloseIdleConnections()
	t.Setenv("SIGNALBOX_TOKEN_FILE", "/does/not/exist")
	_, err = signalbox.New(signalbox.Config{})
	wantError(t, err, signalbox.ErrMisuse)
	if _, err = signalbox.New(signalbox.Config{Token: "of the program"}); err != nil {
		t.Fatal(err)
	}
}

func TestATokenIsSentWithoutTheEndOfItsLine(t *testing.T) {
	server, change := tokens(t, `networks = ["127.0.0.0/8 none"]`)
	token := change("create", "worker", "--rights", "acquire")
	for _, text := range []string{token + "\n", token + "\r\n"} {
		client := server.client(t, signalbox.Config{Token: text})
		eventually(t, "the server knows the token", func() bool {
			permit, err := client.Acquire(context.Background(), "a", signalbox.Maximum(1))
			return err == nil && permit.Release() == nil
		})
	}
	_, err := server.client(t, signalbox.Config{}).Acquire(context.Background(), "a", signalbox.Maximum(1))
	if wantError(t, err, signalbox.ErrNotPermitted); !strings.Contains(err.Error(), "SIGNALBOX_TOKEN") {
		t.Fatal(err)
	}
}
