import { post } from "./api.ts";
import { allows, boot } from "./boot.ts";

/** Whether this page can act on a node: on its own, and on others where the node forwards requests. */
export function reaches(node: string): boolean {
  return node === "" || node === boot.value?.node || allows("forward");
}

/** Address of a node's admin port as far as this page knows it; empty if it does not. */
export function adminOf(node: string): string {
  if (node === boot.value?.node) return location.origin;
  return boot.value?.peers.find((peer) => peer.node === node)?.admin ?? "";
}

/** Asks a node to do something; another one than that of this page is asked through it. */
export function postOn<T>(node: string, path: string, body?: unknown, method: "POST" | "DELETE" = "POST"): Promise<T> {
  if (node === "" || node === boot.value?.node) return post<T>(path, body, method);
  return post<T>("/v1/dev/forward", { node, method, path, ...(body === undefined ? {} : { body }) });
}
