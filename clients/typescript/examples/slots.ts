// Each job has a GPU of its own, by its number. Declare them once: signalbox declare gpu --capacity 8 --slots

import { Client } from "signalbox";

const client = new Client();
await client.using("gpu", { waitMs: 60_000 }, (permit) => {
  const [[gpu] = []] = permit.slots;
  console.log(`CUDA_VISIBLE_DEVICES=${gpu} train`);
});
