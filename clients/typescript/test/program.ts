// A program of its own process, for tests that stop it or look at its end.

import { Client, Lost } from "signalbox";

const client = new Client();
const mode = process.argv[2];

switch (mode) {
  case "check": {
    // Checks without a turn of the event loop, and is stopped meanwhile.
    const permit = await client.acquire("stopped", { maximum: 1, ttlMs: 1000 });
    console.log("held");
    let before = performance.now();
    let wasStopped = false;
    for (;;) {
      wasStopped ||= performance.now() - before > 900;
      before = performance.now();
      try {
        permit.check();
        if (wasStopped) {
          console.log("believed");
        }
      } catch (error) {
        console.log(`lost: ${(error as Lost).reason}`);
        break;
      }
    }
    break;
  }
  case "forget":
    await client.acquire(mode, { maximum: 1 });
    console.log("held");
    break;
  case "release": {
    const permit = await client.acquire(mode, { maximum: 1 });
    console.log("held");
    void permit.release();
    break;
  }
  case "cancel": {
    const canceled = new AbortController();
    const acquiring = client.acquire(mode, { maximum: 1, signal: canceled.signal });
    canceled.abort();
    await acquiring.catch(() => console.log("held"));
    break;
  }
}
