/** Addresses of the cluster's nodes in the order in which a person tries them: the people begin at different nodes. */
export function addressesFor(index: number, own: readonly string[], peers: readonly (readonly string[])[]): string[] {
  const nodes = [own, ...peers].filter((it) => it.length > 0);
  const first = nodes.length > 0 ? index % nodes.length : 0;
  return [...nodes.slice(first), ...nodes.slice(0, first)].flat();
}
