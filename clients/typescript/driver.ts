// The driver for the conformance suite (conformance/README.md): passes its commands to the client, and reports what the client says.

import { createInterface } from "node:readline";

import { Busy, type Claim, Client, Failure, Lost, Misuse, NotPermitted, type Permit, QueueFull, TimedOut, Unreachable } from "signalbox";

interface Command {
  id: number;
  do: "acquire" | "cancel" | "check" | "pairs" | "release" | "exit";
  permit: string;
  claims: Claim[];
  ttl_ms?: number;
  wait_ms?: number;
  block_ms?: number;
  stop?: boolean;
  share?: boolean;
  done?: boolean;
  count?: number;
  keep?: boolean;
}

const FAILURES = { busy: Busy, timed_out: TimedOut, queue_full: QueueFull, lost: Lost, unreachable: Unreachable, not_permitted: NotPermitted, misuse: Misuse };

const permits = new Map<string, Permit>();
const acquires = new Map<string, AbortController>();
/** The permits by the numbers in the events. */
const names = new Map<number, string>();
const kept: Permit[] = [];

const say = (line: object): unknown => process.stdout.write(`${JSON.stringify(line)}\n`);

const client = new Client({
  onEvent(event) {
    const permit = names.get(event.id);
    if (event.type === "revoking") {
      say({ event: "revoking", permit, grace_ms: event.graceMs });
    } else if (event.type === "lost") {
      say({ event: "lost", permit, reason: event.reason });
    }
  },
});

/** The client's belief about a permit. */
function belief(permit: Permit): { held: boolean; left_ms?: number } {
  try {
    permit.check();
    return { held: true, left_ms: Math.floor(permit.timeLeftMs) };
  } catch {
    return { held: false };
  }
}

async function acquire({ permit: name, claims, ttl_ms: ttlMs, wait_ms: waitMs, share }: Command): Promise<object> {
  const canceled = new AbortController();
  acquires.set(name, canceled);
  try {
    const options = { ttlMs, waitMs, signal: canceled.signal };
    const permit = await (share ? client.acquireShared(claims[0]?.name ?? "", options) : client.acquire(claims, options));
    if (permit === undefined) {
      return { done: true };
    }
    permits.set(name, permit);
    names.set(permit.id, name);
    return { ...belief(permit), fence: String(permit.fence), slots: permit.slots };
  } catch (error) {
    const failure = Object.entries(FAILURES).find(([, type]) => error instanceof type);
    return { failure: failure?.[0] ?? "canceled", message: error instanceof Failure ? error.message : undefined };
  }
}

async function pairs({ claims, ttl_ms: ttlMs, wait_ms: waitMs, count = 0, keep }: Command): Promise<number[]> {
  const times: number[] = [];
  for (let index = 0; index < count; index++) {
    const began = performance.now();
    const permit = await client.acquire(claims, { ttlMs, waitMs });
    if (keep) {
      kept.push(permit);
    } else {
      await permit.release();
    }
    times.push(Math.round((performance.now() - began) * 1000));
  }
  return times;
}

say({ driver: "typescript", capabilities: ["cancel", "defaults", "pairs", "push", "renew", "share", "tls", "token"] });
for await (const line of createInterface(process.stdin)) {
  const command = JSON.parse(line) as Command;
  const answer = (more: object): unknown => say({ id: command.id, ...more });
  const permit = permits.get(command.permit);
  switch (command.do) {
    case "acquire":
      void acquire(command).then(answer);
      break;
    case "cancel":
      acquires.get(command.permit)?.abort();
      answer({});
      break;
    case "check":
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, command.block_ms ?? 0);
      if (command.stop) {
        process.kill(process.pid, "SIGSTOP");
      }
      answer(permit ? belief(permit) : { held: false });
      break;
    case "release":
      await (command.done ? permit?.releaseDone() : permit?.release());
      answer({});
      break;
    case "pairs":
      answer({ times_us: await pairs(command) });
      break;
    case "exit":
      process.exit();
  }
}
