// A job that needs a licence and two connections: it gets all at once or waits, so jobs do not block each other forever.

import { Client } from "signalbox";

const client = new Client();
const names = [
  { name: "licence", maximum: 5 },
  { name: "connections", maximum: 10, resources: 2 },
];
await client.using(names, { waitMs: 60_000 }, () => console.log("working with a licence and two connections"));
