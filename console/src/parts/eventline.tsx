import type { CloudEvent } from "../live/cloudevents.ts";
import { nodeClass, nodeHue } from "../live/boot.ts";
import { windowWords } from "../words/guard.ts";
import { feedWords } from "../words/feed.ts";
import { grouped } from "../words/numbers.ts";

function Node({ name }: { readonly name: string }) {
  return <span class={nodeClass(name)} title={nodeHue(name) ? undefined : "Not a node of the cluster now"}><span class="node">{name}</span></span>;
}

/** An event in words. */
export function EventLine({ it }: { readonly it: CloudEvent }) {
  const data = it.data as { device?: string; node?: string; conversation?: string; seq?: number; expected?: string; replaced?: { node?: string }; state?: string; count?: number; peak?: number; threshold?: number; windowMs?: number; name?: string; method?: string; route?: string; status?: number; code?: string; targets?: Record<string, readonly string[]> };
  const kind = it.type.replace("tidegate.", "");
  const from = data.replaced?.node;
  const isOfFeed = /^(message|group|member|node|partition)\./.test(kind);
  const targets = Object.entries(data.targets ?? {}).map(([name, ids]) => `${name} ${ids.join(", ")}`).join(", ");
  return (
    <span class="event-line">
      <time class="mono num quiet" title={it.time}>{new Date(it.time).toLocaleTimeString("en-GB")}</time>
      <i class={`dot ${kind === "online" ? "" : kind === "offline" ? "off" : kind === "read" || isOfFeed ? "read" : "amber"}`} />
      <span class="cut">
        <b>{it.subject}</b>{" "}
        {kind === "online" && <>came online: {data.device} on <Node name={data.node ?? ""} />{from ? (from === data.node ? ", replacing its older connection" : <>, moved from <Node name={from} /></>) : ""}</>}
        {kind === "offline" && <>went offline: {data.device} on <Node name={data.node ?? ""} /></>}
        {kind === "read" && <>read <b>{data.conversation}</b> up to {data.seq}</>}
        {kind === "order-blocked" && <>has a chain that waits for <code>{data.expected}</code>, on {data.device}</>}
        {kind === "audit" && <>{data.name} sent <code>{data.method} {data.route}</code>{targets && ` (${targets})`}: {[data.status, data.code].filter(Boolean).join(" ")}</>}
        {kind === "storm" && (data.state === "over" ? <>has no message storm any more; at its peak {grouped(data.peak ?? 0)} messages in {windowWords(data.windowMs ?? 0)}</> : <>has a message storm: {grouped(data.count ?? 0)} messages in {windowWords(data.windowMs ?? 0)}, and {grouped(data.threshold ?? 0)} are none</>)}
        {!["online", "offline", "read", "order-blocked", "audit", "storm"].includes(kind) && (feedWords(it) || it.type)}
      </span>
    </span>
  );
}
