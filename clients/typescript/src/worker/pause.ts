// Pauses between a request that was not answered and the same request again, and waits with an end.

import { setTimeout as sleep } from "node:timers/promises";

/** The longest pause between two attempts, unless it has to be shorter. */
export const PAUSE_MS_MAX = 2_000;

/** Waits for a random time that grows with the number of failures in a row, at most `maxMs`, and not less than the server asks for. */
export async function pause(failures: number, maxMs: number, retryAfterMs: number, signal?: AbortSignal): Promise<void> {
  const longest = Math.min(100 * 2 ** failures, maxMs);
  const random = longest * (0.2 + 0.8 * Math.random());
  await sleep(Math.min(Math.max(random, retryAfterMs * (1 + Math.random() / 4)), maxMs), undefined, signal && { signal });
}

/** Resolves to the result of a promise, or after some time to `otherwise`. */
export async function within<T>(ms: number, promise: Promise<T>, otherwise: T): Promise<T> {
  const over = new AbortController();
  try {
    return await Promise.race([promise, sleep(ms, otherwise, { signal: over.signal })]);
  } finally {
    over.abort();
  }
}
