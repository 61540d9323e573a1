// One instance of a service leads; another one takes over when it ends, hangs, or is revoked.

import { setTimeout as sleep } from "node:timers/promises";

import { Client, Lost } from "signalbox";

const client = new Client({ ttlMs: 15_000, label: process.argv[2] });
const ended = new AbortController();
process.once("SIGTERM", () => ended.abort());

while (!ended.signal.aborted) {
  try {
    await client.using("service/leader", { maximum: 1, waitMs: Infinity, signal: ended.signal }, async (permit) => {
      console.log("leading");
      await lead(AbortSignal.any([permit.signal, ended.signal]));
    });
  } catch (error) {
    if (ended.signal.aborted) {
      break;
    }
    console.log(error instanceof Lost ? `no longer leading: ${error.reason}` : String(error));
    await sleep(100 + 900 * Math.random());
  }
}

/** Stands for what a leader does, step by step, until it is told to stop. */
async function lead(signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    await sleep(1_000, undefined, { signal }).catch(() => undefined);
  }
}
