// Renews the lease of a key until it is released or lost, or the runner has ended: node keep.js KEY TTL_MS PROCESS

const { ask } = require("./server.js");

const [key, ttlMs, runner] = process.argv.slice(2);

// The process that runs the job. In a container, where it is not visible and 0, the container ends with the job.
setInterval(() => {
  try {
    process.kill(Number(runner), 0);
  } catch (error) {
    if (error.code === "ESRCH") {
      process.exit();
    }
  }
}, 500).unref();

(async () => {
  let state;
  do {
    const answer = await ask("renew", { keys: [key], poll_ms: Math.min(ttlMs / 4, 10_000) }, performance.now() + Number(ttlMs));
    state = answer.leases?.[0].state;
  } while (state === "held");
})();
