// The worker thread: it acquires, renews and releases, so nothing that the program does on its own thread delays that.

import { randomBytes } from "node:crypto";
import { parentPort, workerData } from "node:worker_threads";

import { now } from "../clock.js";
import type { Command, Report, Settings, WireFailure, WireRequest } from "../messages.js";
import { acquire, Refused } from "./acquire.js";
import { Lease, type Listener } from "./lease.js";
import { PAUSE_MS_MAX, pause, within } from "./pause.js";
import { Renewal } from "./renewal.js";
import { NoAnswer, Transport } from "./transport.js";

/** How long the program waits for the answer of a release. The worker repeats it until the lease has ended. */
const RELEASE_MS_MAX = 5_000;

const settings = workerData as Settings;
const transport = new Transport(settings);
const renewal = new Renewal(transport);

/** Acquires that are under way, and leases, by the number of their permit. */
const acquires = new Map<number, AbortController>();
const leases = new Map<number, Lease>();

const report = (report: Report): void => parentPort?.postMessage(report);

parentPort?.on("message", (command: Command) => {
  switch (command.do) {
    case "acquire":
      void begin(command.id, command.request);
      break;
    case "release":
      acquires.get(command.id)?.abort();
      if (!acquires.has(command.id)) {
        void end(command.id, command.done);
      }
      break;
    case "expire":
      leases.get(command.id)?.expire();
      break;
  }
});

async function begin(id: number, request: WireRequest): Promise<void> {
  const key = randomBytes(16).toString("hex");
  const canceled = new AbortController();
  acquires.set(id, canceled);
  try {
    const onWaiting = (position: number): void => report({ is: "waiting", id, position });
    const granted = await acquire(transport, key, request, settings.unreachableAfterMs, onWaiting, canceled.signal);
    if (granted === undefined) {
      acquires.delete(id);
      void release(key, now() + request.ttl_ms);
      report({ is: canceled.signal.aborted ? "released" : "done", id });
      return;
    }
    const lease = new Lease(key, granted, listener(id));
    leases.set(id, lease);
    acquires.delete(id);
    if (canceled.signal.aborted) {
      await end(id, false);
      return;
    }
    report({ is: "held", id, fence: granted.grant, slots: granted.slots, validity: lease.validity.memory });
    renewal.add(lease);
    lease.watch();
  } catch (error) {
    acquires.delete(id);
    if (canceled.signal.aborted) {
      await release(key, now() + request.ttl_ms);
      report({ is: "released", id });
      return;
    }
    if (!(error instanceof Refused) || error.mayHold) {
      void release(key, now() + request.ttl_ms);
    }
    report({ is: "failed", id, failure: failureOf(error) });
  }
}

function failureOf(error: unknown): WireFailure {
  if (error instanceof Refused) {
    return error.failure;
  }
  return { kind: "Misuse", code: undefined, message: (error as Error).message };
}

function listener(id: number): Listener {
  return {
    renewed() {
      if (settings.reportsRenewals) {
        report({ is: "renewed", id });
      }
    },
    revoking(lease, graceMs) {
      renewal.remove(lease);
      report({ is: "revoking", id, graceMs });
    },
    refused(lease) {
      renewal.remove(lease);
      // The rights, or the token, may change.
      setTimeout(() => leases.get(id) === lease && renewal.add(lease), lease.ttlMs / 4);
    },
    lost(lease, reason) {
      renewal.remove(lease);
      leases.delete(id);
      // The server may consider the lease valid for longer; and an acquire that comes late then begins no lease.
      void release(lease.key, lease.endsAtMs);
      report({ is: "lost", id, reason });
    },
  };
}

/** Releases a lease that is held, if it is. */
async function end(id: number, done: boolean): Promise<void> {
  const lease = leases.get(id);
  if (lease !== undefined) {
    leases.delete(id);
    renewal.remove(lease);
    lease.stop();
    await release(lease.key, lease.endsAtMs, done);
  }
  report({ is: "released", id });
}

/** Releases a key, again and again until it is answered or a time of the clock, and returns after some seconds in any case. */
async function release(key: string, untilMs: number, done = false): Promise<void> {
  const released = (async () => {
    for (let failures = 0; ; failures++) {
      let retryAfterMs = 0;
      try {
        if ((await transport.post("release", done ? { key, done } : { key })).status === 200) {
          return;
        }
      } catch (error) {
        if (!(error instanceof NoAnswer)) {
          throw error;
        }
        retryAfterMs = error.retryAfterMs;
      }
      if (now() >= untilMs) {
        return;
      }
      await pause(failures, PAUSE_MS_MAX, retryAfterMs);
    }
  })();
  await within(RELEASE_MS_MAX, released, undefined);
}
