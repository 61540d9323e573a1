"""The examples of docs/opentelemetry.md. Each runs in a program that does the same two jobs and prints what was exported."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Server
from recipes import CLASSES, ROOT, WORK, Program, blocks, write

import signalbox

PAGE = blocks("docs/opentelemetry.md")

PYTHON = """
import datetime, json, threading
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
metrics.set_meter_provider(MeterProvider([reader]))
from traced import client

tracer, lost = trace.get_tracer("job"), threading.Event()
with tracer.start_as_current_span("job"):
    with client.acquire("tenant/7", maximum=1, wait=datetime.timedelta(minutes=1)):
        pass
    permit = client.acquire("tenant/7", maximum=1)
    permit.on_lost(lambda reason: lost.set())
    print(permit.fence, flush=True)
    lost.wait()
    permit.release()
while len(exporter.get_finished_spans()) < 3:
    pass
names = {span.context.span_id: span.name for span in exporter.get_finished_spans()}
spans = [
    {
        "name": span.name,
        "parent": span.parent and names[span.parent.span_id],
        "error": span.status.description,
        "events": [event.name for event in span.events],
    }
    for span in exporter.get_finished_spans()
]
points = [
    [metric.name, dict(point.attributes), point.value]
    for metric in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    for point in metric.data.data_points
]
print(json.dumps({"spans": spans, "points": points}))
"""

NODE = """
import { metrics, trace } from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { AggregationTemporality, InMemoryMetricExporter, MeterProvider, PeriodicExportingMetricReader }
  from "@opentelemetry/sdk-metrics";
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-base";
import { context } from "@opentelemetry/api";
import { once } from "node:events";

const exporter = new InMemorySpanExporter();
trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }));
context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
const exported = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE);
const reader = new PeriodicExportingMetricReader({ exporter: exported, exportIntervalMillis: 3_600_000 });
metrics.setGlobalMeterProvider(new MeterProvider({ readers: [reader] }));
const { client } = await import("./traced.mjs");

// Another acquire begins first, so that the client does not take the context of its start for that of each acquire.
await client.using("other", { maximum: 1 }, () => {});
await trace.getTracer("job").startActiveSpan("job", async (job) => {
  await client.using("tenant/7", { maximum: 1, waitMs: 60_000 }, () => {});
  const permit = await client.acquire("tenant/7", { maximum: 1 });
  console.log(String(permit.fence));
  const wait = setInterval(() => {}, 1_000); // A permit does not keep the process alive.
  if (!permit.signal.aborted) {
    await once(permit.signal, "abort");
  }
  while (exporter.getFinishedSpans().length < 3) {
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  clearInterval(wait);
  await permit.release();
  job.end();
});
await client.close();
await reader.forceFlush();
const spans = exporter.getFinishedSpans();
const names = new Map(spans.map((span) => [span.spanContext().spanId, span.name]));
const points = exported.getMetrics().at(-1).scopeMetrics[0].metrics.flatMap(({ descriptor, dataPoints }) =>
  dataPoints.map(({ attributes, value }) => [descriptor.name, attributes, value]));
console.log(JSON.stringify({
  spans: spans.map((span) => ({
    name: span.name,
    parent: names.get(span.parentSpanContext?.spanId) ?? null,
    error: span.status.message ?? null,
    events: span.events.map(({ name }) => name),
  })),
  points,
}));
"""

GO = """
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	signalbox "github.com/signalbox/signalbox/clients/go"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	api "go.opentelemetry.io/otel/trace"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	recorder, reader := tracetest.NewSpanRecorder(), metric.NewManualReader()
	otel.SetTracerProvider(trace.NewTracerProvider(trace.WithSpanProcessor(recorder)))
	otel.SetMeterProvider(metric.NewMeterProvider(metric.WithReader(reader)))
	client, err := newTracedClient()
	check(err)
	ctx, job := otel.Tracer("job").Start(context.Background(), "job")
	first, err := client.Acquire(ctx, "tenant/7", signalbox.Maximum(1), signalbox.Wait(time.Minute))
	check(err)
	check(first.Release())
	second, err := client.Acquire(ctx, "tenant/7", signalbox.Maximum(1))
	check(err)
	fmt.Println(second.Fence())
	for second.TimeLeft() > 0 {
		time.Sleep(10 * time.Millisecond)
	}
	_ = second.Release()
	job.End()
	names := map[api.SpanID]string{}
	for _, span := range recorder.Ended() {
		names[span.SpanContext().SpanID()] = span.Name()
	}
	type exported struct {
		Name   string   `json:"name"`
		Parent *string  `json:"parent"`
		Error  *string  `json:"error"`
		Events []string `json:"events"`
	}
	var spans []exported
	for _, span := range recorder.Ended() {
		of := exported{Name: span.Name(), Events: []string{}}
		if name, ok := names[span.Parent().SpanID()]; ok {
			of.Parent = &name
		}
		if text := span.Status().Description; text != "" {
			of.Error = &text
		}
		for _, event := range span.Events() {
			of.Events = append(of.Events, event.Name)
		}
		spans = append(spans, of)
	}
	var data metricdata.ResourceMetrics
	check(reader.Collect(ctx, &data))
	var points [][]any
	for _, metric := range data.ScopeMetrics[0].Metrics {
		for _, point := range metric.Data.(metricdata.Sum[int64]).DataPoints {
			attributes := map[string]any{}
			for _, attribute := range point.Attributes.ToSlice() {
				attributes[string(attribute.Key)] = attribute.Value.AsInterface()
			}
			points = append(points, []any{metric.Name, attributes, point.Value})
		}
	}
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{"spans": spans, "points": points}))
}
"""

GO_MODULE = f"""module traced

go 1.24.0

require (
	github.com/signalbox/signalbox/clients/go v0.0.0
	go.opentelemetry.io/otel v1.39.0
	go.opentelemetry.io/otel/metric v1.39.0
	go.opentelemetry.io/otel/sdk v1.39.0
	go.opentelemetry.io/otel/sdk/metric v1.39.0
	go.opentelemetry.io/otel/trace v1.39.0
)

replace github.com/signalbox/signalbox/clients/go => {ROOT}/clients/go
"""

JAVA = """
import io.github.signalbox.*;
import io.opentelemetry.api.GlobalOpenTelemetry;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.sdk.OpenTelemetrySdk;
import io.opentelemetry.sdk.metrics.SdkMeterProvider;
import io.opentelemetry.sdk.testing.exporter.*;
import io.opentelemetry.sdk.trace.SdkTracerProvider;
import io.opentelemetry.sdk.trace.export.SimpleSpanProcessor;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import java.util.stream.Collectors;

public class Main {
    static String quoted(String text) {
        return text == null || text.isEmpty() ? "null" : '"' + text + '"';
    }

    public static void main(String[] arguments) throws InterruptedException {
        InMemorySpanExporter spans = InMemorySpanExporter.create();
        InMemoryMetricReader metrics = InMemoryMetricReader.create();
        GlobalOpenTelemetry.set(OpenTelemetrySdk.builder()
                .setTracerProvider(SdkTracerProvider.builder().addSpanProcessor(SimpleSpanProcessor.create(spans)).build())
                .setMeterProvider(SdkMeterProvider.builder().registerMetricReader(metrics).build()).build());
        Client client = Traced.client();
        Span job = GlobalOpenTelemetry.getTracer("job").spanBuilder("job").startSpan();
        client.acquire(Request.of("tenant/7").maximum(1).waitUpTo(Duration.ofMinutes(1))).release();
        Permit permit = client.acquire(Request.of("tenant/7").maximum(1));
        CountDownLatch lost = new CountDownLatch(1);
        permit.onLost(reason -> lost.countDown());
        System.out.println(permit.fence());
        lost.await();
        while (spans.getFinishedSpanItems().size() < 2) {
            Thread.sleep(10);
        }
        job.end();
        String exported = spans.getFinishedSpanItems().stream().map(span -> String.format(
                "{\\"name\\": %s, \\"parent\\": null, \\"error\\": %s, \\"events\\": []}", quoted(span.getName()),
                quoted(span.getStatus().getDescription()))).collect(Collectors.joining(", "));
        String points = metrics.collectAllMetrics().stream().flatMap(metric -> metric.getLongSumData().getPoints().stream()
                .map(point -> String.format("[%s, {%s}, %d]", quoted(metric.getName()), point.getAttributes().asMap().entrySet()
                        .stream().map(of -> quoted(of.getKey().getKey()) + ": " + quoted(of.getValue().toString()))
                        .collect(Collectors.joining(", ")), point.getValue()))).collect(Collectors.joining(", "));
        System.out.println("{\\"spans\\": [" + exported + "], \\"points\\": [" + points + "]}");
    }
}
"""

# The part of open-telemetry/api that the example uses.
PHP_STAND_INS = r"""<?php
namespace OpenTelemetry\API\Trace {
    final class StatusCode { public const STATUS_ERROR = 'Error'; }
    final class Span {
        public static ?Span $current = null;
        /** @var list<Span> */
        public static array $ended = [];
        public array $events = [];
        public ?string $error = null;
        public function __construct(public readonly string $name, public readonly ?string $parent) {}
        public static function getCurrent(): Span { return self::$current; }
        public function setAttribute(string $key, int $value): self { return $this; }
        public function startSpan(): self { return $this; }
        public function addEvent(string $name, iterable $attributes): self { $this->events[] = $name; return $this; }
        public function setStatus(string $code, string $text): self { $this->error = $text; return $this; }
        public function end(): void { self::$ended[] = $this; }
    }
}
namespace OpenTelemetry\API {
    use OpenTelemetry\API\Trace\Span;
    final class Instrument {
        public static array $points = [];
        public function __construct(private readonly string $name) {}
        public function add(int $amount, array $attributes): void {
            ksort($attributes);
            $key = json_encode([$this->name, $attributes]);
            self::$points[$key] = (self::$points[$key] ?? 0) + $amount;
        }
    }
    final class Globals {
        public static function tracerProvider(): self { return new self(); }
        public static function meterProvider(): self { return new self(); }
        public function getTracer(string $name): self { return $this; }
        public function getMeter(string $name): self { return $this; }
        public function createCounter(string $name): Instrument { return new Instrument($name); }
        public function createUpDownCounter(string $name): Instrument { return new Instrument($name); }
        public function spanBuilder(string $name): Span { return new Span($name, Span::getCurrent()->name); }
    }
}
"""

PHP = r"""<?php
use OpenTelemetry\API\Instrument;
use OpenTelemetry\API\Trace\Span;

foreach ([...glob('%s/*.php'), 'stand_ins.php', 'traced.php'] as $file) {
    require_once $file;
}
Span::$current = new Span('job', null);
$client = tracedClient();
$client->run('tenant/7', fn () => null, maximum: 1, waitSeconds: 60.0);
$permit = $client->acquire('tenant/7', maximum: 1, ttlSeconds: 1.5);
echo $permit->fence(), "\n";
try {
    for (;;) {
        $permit->refresh();
        usleep(10000);
    }
} catch (Signalbox\Lost) {
}
Span::$current->end();
$points = [];
foreach (Instrument::$points as $key => $value) {
    $points[] = [...json_decode($key), $value];
}
$spans = array_map(fn (Span $span) => array_intersect_key((array) $span, array_flip(['name', 'parent', 'error', 'events'])), Span::$ended);
echo json_encode(['spans' => $spans, 'points' => $points]), "\n";
""" % (ROOT / "clients/php/src")


@pytest.fixture(params=["python", "node", "go", "java", "php"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[str]]:
    """The directory and the command of a program."""
    match request.param:
        case "python":
            write(tmp_path, {"traced.py": PAGE["traced.py"], "job.py": PYTHON})
            return tmp_path, [sys.executable, "job.py"]
        case "node":
            write(WORK / "node", {"traced.mjs": PAGE["traced.mjs"], "job.mjs": NODE})
            return WORK / "node", ["node", "job.mjs"]
        case "go":
            if not shutil.which("go"):
                pytest.skip("Go is not installed")
            write(tmp_path, {"traced.go": PAGE["traced.go"], "main.go": GO, "go.mod": GO_MODULE})
            for command in (["go", "mod", "tidy"], ["go", "build", "-o", "job", "."]):
                subprocess.run(command, cwd=tmp_path, env={**os.environ, "GOTOOLCHAIN": "local"}, check=True)
            return tmp_path, ["./job"]
        case "java":
            if not (WORK / "java/lib").exists():
                pytest.skip("there is no JDK with Maven")
            write(tmp_path, {"Traced.java": PAGE["Traced.java"], "Main.java": JAVA})
            subprocess.run(["javac", "-cp", CLASSES, "Main.java", "Traced.java"], cwd=tmp_path, check=True)
            return tmp_path, ["java", "-cp", f"{CLASSES}:.", "Main"]
        case _:
            write(tmp_path, {"traced.php": PAGE["traced.php"], "stand_ins.php": PHP_STAND_INS, "job.php": PHP})
            return tmp_path, ["php", "job.php"]


def test_permits_are_spans_and_metrics(server: Server, program: tuple[Path, list[str]]) -> None:
    """The program waits for "tenant/7", releases it, acquires it again, and loses that by a revocation."""
    directory, command = program
    held = signalbox.Client(server.url).acquire("tenant/7", maximum=1)
    with held, Program(directory, *command, SIGNALBOX_URL=server.url) as job:
        server.eventually("tenant/7", (1, 1))
        held.release()
        job.says("\n")
        server.ask("revoke", {"grant": job.output.split()[0], "grace_ms": 0})
        assert job.end() == 0, job.output
        exported: dict[str, Any] = json.loads(job.output.splitlines()[-1])
    spans = [span for span in exported["spans"] if span["name"] != "hold other"]
    [first, second, parent] = sorted(spans, key=lambda span: (span["name"] == "job", span["error"] or ""))
    assert (first["name"], first["error"], first["events"]) == ("hold tenant/7", None, [])
    assert (second["name"], second["error"]) == ("hold tenant/7", "revoked")
    assert (parent["name"], parent["error"], parent["parent"]) == ("job", None, None)
    points = [point for point in exported["points"] if point[1].pop("signalbox.area") == "tenant"]
    assert [value for name, _, value in points if name == "signalbox.permits"] == [0]
    events = {at["signalbox.event"]: value for name, at, value in points if name == "signalbox.events"}
    assert (events["acquired"], events["lost"]) == (2, 1)
    assert events["released"] >= 1
    has_context = command[0] != "java"
    assert {first["parent"], second["parent"]} == {"job" if has_context else None}
    assert parent["events"] == ["waiting"] * (events["waiting"] if has_context else 0)
