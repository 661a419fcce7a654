import { nodeClass } from "../live/boot.ts";
import type { Nodes } from "../live/nodes.ts";
import { duration, grouped, plural } from "../words/numbers.ts";

/** The partitions of the log, grouped by owner; the height above a cell is what waits to be archived. */
export function Partitions({ it }: { readonly it: Nodes }) {
  const live = it.nodes.filter((node) => node.lease === "live");
  const owned = new Set(live.flatMap((node) => [...node.owns]));
  const orphans = Array.from({ length: it.partitions }, (_, index) => index).filter((index) => !owned.has(index));
  const waits = new Map(live.flatMap((node) => node.stands.map((stand) => [stand.partition, stand] as const)));
  const cell = (partition: number, broken: boolean) => {
    const stand = waits.get(partition);
    const records = stand?.behindRecords ?? 0;
    const isOld = (stand?.behindMs ?? 0) >= 1000;
    const words = `Partition ${partition}: ${broken ? "no owner" : `${grouped(records)} wait${isOld ? `, the oldest for ${duration(stand?.behindMs ?? 0)}` : ""}`}`;
    return (
      <li class={`cell${isOld ? " old" : ""}${broken || it.archiveBehind.includes(partition) ? " broken" : ""}`} title={words}>
        <i class="wait" style={{ height: `${records === 0 ? 0 : Math.min(32, 4 + Math.log10(records) * 8)}px` }} />
        <i class="base" />
        <span class="num">{partition}</span>
        <span class="sr">{words}</span>
      </li>
    );
  };
  return (
    <section class="partitions">
      <h2>Partitions <span class="quiet small">{plural(it.partitions, "partition")}, {orphans.length === 0 ? "all owned" : `${orphans.length} without an owner`}. Height is what waits to be archived.</span></h2>
      <div class="owners">
        {live.map((node) => (
          <div class={nodeClass(node.node)}>
            <span class="node">{node.node},</span> <span class="quiet small">{grouped(node.owns.length)} {node.owns.length === 1 ? "partition" : "partitions"}</span>
            <ol class="cells">{[...node.owns].sort((a, b) => a - b).map((partition) => cell(partition, false))}</ol>
          </div>
        ))}
        {orphans.length > 0 && (
          <div>
            <span class="waits">no owner</span>
            <ol class="cells">{orphans.map((partition) => cell(partition, true))}</ol>
          </div>
        )}
      </div>
    </section>
  );
}
