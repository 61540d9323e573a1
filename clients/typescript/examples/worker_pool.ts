// Workers that serve tenants, of which each may use two connections to the database at once, on however many machines.

import { Client, QueueFull, TimedOut } from "signalbox";

const client = new Client();

async function work(tenant: string, job: number): Promise<void> {
  try {
    // No longer than a user waits, and not after more requests than can be served in that time.
    const options = { maximum: 2, waitMs: 2_000, queueMax: 20, label: `job ${job}` };
    await client.using(`tenant/${tenant}`, options, async ({ signal }) => {
      await query(tenant, job, signal);
    });
  } catch (error) {
    if (!(error instanceof TimedOut || error instanceof QueueFull)) {
      throw error;
    }
    console.log(`job ${job}: ${tenant} is busy, try again later`);
  }
}

/** Stands for the work, which stops when its signal is aborted. */
async function query(tenant: string, job: number, signal: AbortSignal): Promise<void> {
  signal.throwIfAborted();
  console.log(`job ${job}: done for ${tenant}`);
}

await Promise.all(["blue", "green", "blue", "blue", "green"].map(work));
