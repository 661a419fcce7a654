declare module "code-table" {
  /** A code of the protocol, from the page of codes. */
  export interface CodeEntry {
    readonly code: number;
    readonly name: string;
    readonly group: string;
    readonly cause: string;
    readonly cure: string;
    readonly temporary: boolean;
    readonly reconnect: "now" | "after" | "never";
    readonly status: number;
  }
  const table: readonly CodeEntry[];
  export default table;
}
declare module "*.css";
