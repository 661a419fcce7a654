import { boot, pageVersion } from "../live/boot.ts";
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

/** What concerns the whole page, below its view. */
export function Banners() {
  return (
    <>
      <Older />
      <Silent />
    </>
  );
}
