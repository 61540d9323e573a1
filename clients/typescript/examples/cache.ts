// Of many processes that need the same page at once, one renders it, and the others wait for it. The cache is a file.

import { readFile, rename, writeFile } from "node:fs/promises";

import { Client } from "signalbox";

const client = new Client();
const file = process.argv[2] ?? "page.html";

const find = (): Promise<string | undefined> => readFile(file, "utf8").catch(() => undefined);

const page = await client.share("page/42", { waitMs: 10_000 }, find, async ({ fence }) => {
  const page = `rendered by ${process.pid}`;
  await writeFile(`${file}.${fence}`, page);
  await rename(`${file}.${fence}`, file);
  return page;
});
console.log(page);
