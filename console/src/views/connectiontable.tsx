import { isSilent } from "../app/silence.ts";
import { isFull, nodeClass } from "../live/boot.ts";
import type { Connection } from "../live/connections.ts";
import { clock, seconds } from "../live/stats.ts";
import { ago, bytes, transportWords } from "../words/connections.ts";
import { grouped } from "../words/numbers.ts";
import { ending } from "./ending.tsx";

const time = (ms: number) => new Date(ms).toLocaleString("en-GB");

function Row({ it, isOfOne, mayAct }: { readonly it: Connection; readonly isOfOne: boolean; readonly mayAct: boolean }) {
  const since = ago(clock() - it.sinceMs);
  return (
    <tr class={nodeClass(it.node)}>
      <td class="who">
        {isOfOne ? <b><bdi>{it.device}</bdi></b> : <><a href={`/people?user=${encodeURIComponent(it.user)}`}><bdi>{it.user}</bdi></a> <span class="soft"><bdi>{it.device}</bdi></span></>}
        <span class="narrow small quiet">{it.node}, {it.address}, {since}{it.outboxBytes > 0 && `, ${bytes(it.outboxBytes)} wait`}</span>
      </td>
      <td class="wide"><span class="node">{it.node}</span></td>
      <td class="wide mono">{it.address}</td>
      <td class="wide wider soft">{transportWords(it.transport)}</td>
      <td class="wide num" title={`Since ${time(it.sinceMs)}. ${it.expiresMs === null ? "Its token does not end." : `Its token ends at ${time(it.expiresMs)}.`}`}>{since}</td>
      <td class="wide end">{bytes(it.outboxBytes)}</td>
      <td class="wide end wider">{grouped(it.window)}</td>
      {mayAct && <td class="end acts"><button type="button" class="link" disabled={isSilent.value} aria-label={`Kick ${it.user}’s ${it.device}`} onClick={() => (ending.value = { kick: { user: it.user, device: it.device, id: it.id, node: it.node } })}>Kick</button></td>}
    </tr>
  );
}

/** Connections in a table; those of one user are named by their devices. */
export function ConnectionTable({ list, isOfOne }: { readonly list: readonly Connection[]; readonly isOfOne: boolean }) {
  // Ages rise without a new list.
  void seconds.value;
  const mayAct = isFull();
  return (
    <table class="connections">
      <thead>
        <tr><th>{isOfOne ? "Device" : "User and device"}</th><th class="wide">Node</th><th class="wide">Address</th><th class="wide wider">Transport</th><th class="wide">For</th><th class="wide end">Waiting</th><th class="wide end wider">Not acked</th>{mayAct && <th class="end acts"><span class="sr">Actions</span></th>}</tr>
      </thead>
      <tbody>{list.map((it) => <Row key={it.id} it={it} isOfOne={isOfOne} mayAct={mayAct} />)}</tbody>
    </table>
  );
}
