// A table refuses a writer that was overtaken, however late it comes: it keeps the greatest fence that it has seen.
//
//     CREATE TABLE report (name TEXT PRIMARY KEY, text TEXT, fence BIGINT NOT NULL)

import type { Permit } from "signalbox";

/** The part of a database client, such as one of `pg`, that is needed. */
export interface Database {
  query(sql: string, values: unknown[]): Promise<{ rowCount: number | null }>;
}

/** A writer with a greater fence has written before. */
export class Overtaken extends Error {}

/** Writes a report. Comparing and writing are one statement, so nothing comes between. */
export async function publish(database: Database, permit: Permit, name: string, text: string): Promise<void> {
  const { rowCount } = await database.query("UPDATE report SET text = $1, fence = $2 WHERE name = $3 AND fence <= $2", [
    text,
    String(permit.fence),
    name,
  ]);
  if (rowCount === 0) {
    throw new Overtaken(`report "${name}": a later holder has written, or there is no such report`);
  }
}
