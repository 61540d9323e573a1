// A job that every machine's cron starts, and one of them does.

import { Client } from "signalbox";

const client = new Client();
const permit = await client.tryAcquire("nightly-report", { maximum: 1 });
if (permit === undefined) {
  console.log("another machine writes the report");
} else {
  for (const part of ["sales", "stock"]) {
    permit.check();
    console.log(`writing ${part}`);
  }
  await permit.release();
}
