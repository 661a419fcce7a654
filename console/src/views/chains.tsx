import { useEffect, useState } from "preact/hooks";
import { isSilent } from "../app/silence.ts";
import { isFull, nodeClass } from "../live/boot.ts";
import { chainPath, resetChain, type Chain, type KnownDevice } from "../live/chains.ts";
import { userPath } from "../live/connections.ts";
import { Confirm } from "../parts/confirm.tsx";
import { Failed } from "../parts/failed.tsx";
import { Modal } from "../parts/modal.tsx";
import { useReading } from "../parts/reading.ts";
import { blockedWords, chainSilentWords, isBlocked, resetDone, resetWords } from "../words/chains.ts";
import { grouped } from "../words/numbers.ts";
import { outcome } from "./ending.tsx";

/** Time between two reads; the chain of a device is one read of the store, and asks all nodes. */
const AGAIN_MS = 5000;
/** Devices whose chains are read. */
const SHOWN = 16;

function Row({ user, it, turn, ask }: { readonly user: string; readonly it: KnownDevice; readonly turn: number; readonly ask: (device: string) => void }) {
  const { value, error, again } = useReading<Chain>(it.chain ? chainPath(user, it.device) : "", AGAIN_MS);
  useEffect(() => {
    if (turn > 0) again();
  }, [turn]);
  const node = it.node ?? value?.node ?? "";
  const silent = chainSilentWords(value?.silent ?? []);
  const mayAct = isFull();
  const held = value ? `${grouped(value.held)} held${value.blockedMs > 0 ? ` for ${blockedWords(value)}` : ""}` : "";
  return (
    <tr class={nodeClass(node)}>
      <td class="who">
        <b><bdi>{it.device}</bdi></b> {!it.online && <span class="quiet small">offline</span>}
        {value && <span class="narrow small quiet">expects <code>{value.expected}</code>, {held}</span>}
        {silent && <p class="small lagging">{silent}</p>}
        {error && error.code !== 404 && <Failed error={error} again={again} />}
      </td>
      <td class="wide">{node && <span class="node">{node}</span>}</td>
      <td class="wide mono cut" title={value?.expected ?? ""}>{it.chain ? (value?.expected ?? "–") : <span class="quiet">no chain is saved</span>}</td>
      <td class={value && isBlocked(value) ? "wide end lagging" : "wide end"}>{value ? grouped(value.held) : "–"}</td>
      <td class={value && isBlocked(value) ? "wide end lagging" : "wide end"}>{value ? blockedWords(value) : "–"}</td>
      {mayAct && <td class="end acts">{it.chain && <button type="button" class="link" disabled={isSilent.value} aria-label={`Reset the chain of ${it.device}`} onClick={() => ask(it.device)}>Reset</button>}</td>}
    </tr>
  );
}

/** Devices of a user with their chains: the id that each has to send next, and what is held until it comes. */
export function Chains({ user }: { readonly user: string }) {
  const { value, error, again } = useReading<{ readonly devices: readonly KnownDevice[] }>(userPath(user, "devices"), AGAIN_MS);
  const [asked, ask] = useState("");
  const [turn, setTurn] = useState(0);
  const all = value?.devices ?? [];
  const mayAct = isFull();
  const after = () => {
    ask("");
    setTurn(turn + 1);
    again();
  };
  return (
    <section class="pad chains" aria-label="Chains">
      <h2>Chains <span class="quiet small">of the devices that are connected or have one</span></h2>
      {error && <Failed error={error} again={again} />}
      {!value && !error && <p class="quiet">–</p>}
      {value && all.length === 0 && <p class="quiet">No device is connected, and no chain is saved.</p>}
      {all.length > 0 && (
        <div class="scroll-x"><table class="connections">
          <thead><tr><th>Device</th><th class="wide">Node</th><th class="wide">Expects next</th><th class="wide end">Held</th><th class="wide end">Blocked for</th>{mayAct && <th class="end acts"><span class="sr">Actions</span></th>}</tr></thead>
          <tbody>{all.slice(0, SHOWN).map((it) => <Row key={it.device} user={user} it={it} turn={turn} ask={ask} />)}</tbody>
        </table></div>
      )}
      {all.length > SHOWN && <p class="quiet small">{grouped(all.length - SHOWN)} more devices are not shown.</p>}
      <Modal label="Reset the chain" isOpen={asked !== ""} close={() => ask("")}>
        {asked && (
          <Confirm
            title={`Reset the chain of ${user}’s ${asked}?`}
            words={resetWords(user, asked)}
            path={chainPath(user, asked)}
            keep="Keep it"
            verb="Reset"
            run={async () => resetDone(user, asked, await resetChain(user, asked))}
            done={(said) => (outcome.value = said)}
            close={after}
          />
        )}
      </Modal>
    </section>
  );
}
