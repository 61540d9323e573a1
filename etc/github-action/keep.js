// Renews the lease of STATE_key until it is released or lost, or the runner has ended: node keep.js TTL_MS PROCESS

const { ask } = require("./server.js");

const { STATE_key: key } = process.env;
const [ttlMs, runner] = process.argv.slice(2).map(Number);

// The process that runs the job. In a container, where it is not visible and 0, the container ends with the job.
setInterval(() => {
  try {
    process.kill(runner, 0);
  } catch (error) {
    if (error.code === "ESRCH") {
      process.exit();
    }
  }
}, 500).unref();

(async () => {
  let state;
  do {
    const answer = await ask("renew", { keys: [key], poll_ms: Math.min(ttlMs / 4, 10_000) }, performance.now() + ttlMs);
    state = answer.leases?.[0].state;
  } while (state === "held");
})();
