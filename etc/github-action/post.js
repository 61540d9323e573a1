// The end of the job: releases, and fails if the lease was lost before.

const { ask, input, run } = require("./server.js");

run(async () => {
  const { STATE_key: key, STATE_held: held } = process.env;
  if (!key) {
    return; // The inputs were wrong.
  }
  const answer = await ask("renew", { keys: [key] }, performance.now() + 10_000);
  await ask("release", { key }, performance.now() + 10_000);
  const lease = answer.leases?.[0];
  if (held && lease?.state === "lost") {
    throw new Error(`"${input("name")}" was lost while the job ran (${lease.reason ?? "expired"}), and others may have held it`);
  }
});
