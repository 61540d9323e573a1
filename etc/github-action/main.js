// The step of the action: acquires, and starts the process that renews.

const { spawn } = require("node:child_process");
const { randomBytes } = require("node:crypto");
const { appendFileSync } = require("node:fs");
const { join } = require("node:path");

const { ask, input, number, run } = require("./server.js");

const append = (file, name, value) => appendFileSync(process.env[file], `${name}=${value}\n`);

run(async () => {
  const [ttlMs, waitMs] = [number("ttl_seconds") * 1_000, number("wait_minutes") * 60_000];
  const key = randomBytes(16).toString("hex");
  console.log(`::add-mask::${key}`);
  append("GITHUB_STATE", "key", key); // Also a step that is canceled leaves nothing behind.

  const claim = { name: input("name"), resources: number("resources") };
  const request = {
    key,
    claims: [input("maximum") === "" ? claim : { ...claim, maximum: number("maximum") }],
    ttl_ms: ttlMs,
    wait_ms: waitMs,
    label: `${process.env.GITHUB_REPOSITORY}, run ${process.env.GITHUB_RUN_ID}`.slice(0, 100),
  };
  const pollMs = Math.min(ttlMs / 4, 10_000);
  const end = performance.now() + waitMs + 30_000;
  let answer;
  let position;
  do {
    // The first answer comes at once, and says the position.
    const more = { poll_ms: answer === undefined ? 0 : pollMs, place: answer?.place };
    answer = await ask("acquire", { ...request, ...more }, end);
    if (answer.status === 202 && answer.position !== position) {
      position = answer.position;
      console.log(`waiting for "${claim.name}": position ${position} in the queue`);
    }
  } while (answer.status === 202 && performance.now() < end);
  if (answer.status !== 200) {
    throw new Error(`cannot acquire "${claim.name}": ${answer.error?.message ?? "it was not granted in time"}`);
  }

  console.log(`holding "${claim.name}", with the fencing token ${answer.grant}`);
  append("GITHUB_STATE", "held", "true");
  append("GITHUB_OUTPUT", "fence", answer.grant);
  append("GITHUB_OUTPUT", "slots", answer.slots.flat().join(","));
  // The key is a secret: other users of the machine see arguments.
  const options = { detached: true, stdio: "ignore", env: { ...process.env, STATE_key: key } };
  spawn(process.execPath, [join(__dirname, "keep.js"), answer.ttl_ms, process.ppid], options).unref();
});
