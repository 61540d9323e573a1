package signalbox_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	signalbox "github.com/signalbox/signalbox/clients/go"
)

// spans reports the median and the 99th percentile of what was measured.
func spans(b *testing.B, what string, all []time.Duration) {
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), what+"-p50-µs")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), what+"-p99-µs")
}

func BenchmarkAcquireRelease(b *testing.B) {
	client := newServer(b).client(b, signalbox.Config{})
	all := make([]time.Duration, 0, b.N)
	b.ResetTimer()
	for range b.N {
		begun := time.Now()
		permit, err := client.Acquire(context.Background(), "a", signalbox.Maximum(1))
		if err == nil {
			err = permit.Release()
		}
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, time.Since(begun))
	}
	b.StopTimer()
	spans(b, "pair", all)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
}

// A loopback round trip to the same server, to compare with.
func BenchmarkRoundTrip(b *testing.B) {
	server := newServer(b)
	all := make([]time.Duration, 0, b.N)
	b.ResetTimer()
	for range b.N {
		begun := time.Now()
		response, err := http.Get(server.url + "/healthz")
		if err != nil {
			b.Fatal(err)
		}
		_, _ = response.Body.Read(make([]byte, 100))
		response.Body.Close()
		all = append(all, time.Since(begun))
	}
	b.StopTimer()
	spans(b, "trip", all)
}

// The memory of the program for each of 1,000 permits, whose renewals wait for news.
func BenchmarkMemory(b *testing.B) {
	server := newServer(b)
	used := func() float64 {
		var memory runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&memory)
		return float64(memory.HeapInuse + memory.StackInuse)
	}
	client := server.client(b, signalbox.Config{})
	const permits = 1000
	for range b.N {
		before := used()
		var all []*signalbox.Permit
		for i := range permits {
			permit, err := client.Acquire(context.Background(), fmt.Sprint(i), signalbox.Maximum(1))
			if err != nil {
				b.Fatal(err)
			}
			all = append(all, permit)
		}
		eventually(b, "all renewals wait", func() bool { return server.parked(b) == permits })
		b.ReportMetric((used()-before)/permits, "bytes/permit")
		for _, permit := range all {
			_ = permit.Release()
		}
	}
}

// From the request for a revocation until the permit's context ends.
func BenchmarkRevocation(b *testing.B) {
	server, token := tokens(b, "")
	administrator := token("create", "administrator", "--rights", "all")
	revoke := func(fence uint64) int {
		body := fmt.Sprintf(`{"grant": "%d", "grace_ms": 10000}`, fence)
		request, _ := http.NewRequest(http.MethodPost, server.url+"/api/v1/revoke", strings.NewReader(body))
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Authorization", "Bearer "+administrator)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return 0
		}
		response.Body.Close()
		return response.StatusCode
	}
	eventually(b, "the server knows the token", func() bool { return revoke(1) == http.StatusNotFound })
	client := server.client(b, signalbox.Config{})
	all := make([]time.Duration, 0, b.N)
	for range b.N {
		permit, err := client.Acquire(context.Background(), "a", signalbox.Maximum(1))
		if err != nil {
			b.Fatal(err)
		}
		eventually(b, "the renewal waits", func() bool { return server.parked(b) == 1 })
		begun := time.Now()
		go revoke(permit.Fence())
		if cause := closed(b, permit.Context()); !errors.Is(cause, signalbox.ErrLost) {
			b.Fatal(cause)
		}
		all = append(all, time.Since(begun))
		_ = permit.Release()
	}
	spans(b, "signal", all)
}
