import table from "code-table";

const names = new Map(table.map((it) => [it.code, it.name]));

/** Name of a code, or its number. */
export function codeName(code: number): string {
  return names.get(code) ?? String(code);
}
