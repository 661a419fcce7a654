import { boot, pageVersion } from "../live/boot.ts";
import { unreachable } from "../live/policy.ts";
import { unreachedWords } from "../words/nodes.ts";
import { joined } from "../words/numbers.ts";
import { current } from "./router.ts";
import { isSilent, silence } from "./silence.ts";

/** Says once that the node does not answer, from when the page is, and where else to look. */
function Silent() {
  const age = silence();
  if (age === undefined || !isSilent.value) return null;
  const since = new Date(Date.now() - age * 1000).toLocaleTimeString("en-GB");
  const other = boot.value?.peers.find((peer) => peer.admin);
  return (
    <div class="banner" role="alert">
      {boot.value?.node ?? "The node"} does not answer. What you see is from {since}. Trying again.
      {other && <> <a href={other.admin} target="_blank" rel="noreferrer">The console of {other.node}</a></>}
    </div>
  );
}

/** Says that the node was replaced by another version; the page never loads itself again, because something may be typed in it. */
function Older() {
  const [own, node] = [pageVersion.value, boot.value?.version ?? ""];
  if (!own || !node || own === node) return null;
  return (
    <div class="banner amber row" role="status">
      <span class="grow">This page is older than the node ({own}, {node}).</span>
      <button type="button" class="link" onClick={() => location.reload()}>Reload</button>
    </div>
  );
}

/** Names the nodes to which the browser lets nobody of this page connect: its policy has the addresses of the time when it was loaded. */
function Unreached() {
  const list = current() === "/try" ? unreachable(boot.value) : [];
  if (list.length === 0) return null;
  const names = joined(list.map((it) => it.node));
  return (
    <div class="banner amber row" role="status">
      <span class="grow">{unreachedWords(list)}</span>
      <button type="button" class="link" onClick={() => location.reload()}>Reload to reach {names}</button>
    </div>
  );
}

/** What concerns the whole page, below its view. */
export function Banners() {
  return (
    <>
      <Older />
      <Unreached />
      <Silent />
    </>
  );
}
