// The clock that measures leases. It keeps running while the machine is suspended, where the platform has such a clock, and
// all threads of a process read the same one.
//
// On Linux, process.hrtime stands still in suspension, and /proc/uptime does not. The kernel rounds it down to 10 ms.
// On macOS, process.hrtime keeps running. On Windows, Node has no clock of which that is promised.

import { openSync, readSync } from "node:fs";

/** How far the time may be ahead of what `now` has read, in milliseconds. */
export const CLOCK_STEP_MS = 10;

/** Milliseconds since some moment of the past, at most `CLOCK_STEP_MS` too early. */
export const now: () => number = uptime() ?? (() => Number(process.hrtime.bigint()) / 1e6);

function uptime(): (() => number) | undefined {
  if (process.platform !== "linux") {
    return undefined;
  }
  let file: number;
  try {
    file = openSync("/proc/uptime", "r");
  } catch {
    return undefined;
  }
  const bytes = Buffer.alloc(64);
  return () => {
    const text = bytes.toString("latin1", 0, readSync(file, bytes, 0, bytes.length, 0));
    return Number(text.slice(0, text.indexOf(" "))) * 1000;
  };
}
