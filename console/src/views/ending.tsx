import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { isSilent } from "../app/silence.ts";
import { ApiError } from "../live/api.ts";
import { REASON_MAX, kick, kickPath, revoke, userPath, type Kicked, type Revoked } from "../live/connections.ts";
import { Confirm } from "../parts/confirm.tsx";
import { CopyButton } from "../parts/copy.tsx";
import { Failed } from "../parts/failed.tsx";
import { Modal } from "../parts/modal.tsx";
import { endedWords, kickQuestion, kickWords, revokeWords } from "../words/connections.ts";
import { curl } from "../words/nodes.ts";

/** What a person is asked to confirm: the end of connections, or the revocation of a user's tokens. */
export const ending = signal<{ readonly kick: Kicked } | { readonly revoke: string; readonly devices: readonly string[] } | undefined>(undefined);

/** What was done last, in words. */
export const outcome = signal("");

const failed = signal<ApiError | undefined>(undefined);

async function revokeNow(user: string, what: Revoked, after: () => void): Promise<void> {
  try {
    outcome.value = endedWords(await revoke(user, what), "revoke");
    ending.value = undefined;
    failed.value = undefined;
  } catch (error) {
    if (error instanceof ApiError) failed.value = error;
  }
  after();
}

function Kick({ it, after }: { readonly it: Kicked; readonly after: () => void }) {
  const [reason, setReason] = useState("");
  const [mayReturn, setReturn] = useState(false);
  return (
    <Confirm
      title={kickQuestion(it)}
      words={kickWords(it, mayReturn)}
      path={kickPath(it, reason.trim(), mayReturn)}
      keep="Keep it"
      verb="Kick"
      run={async () => endedWords(await kick(it, reason.trim(), mayReturn).finally(after), "kick")}
      done={(said) => (outcome.value = said)}
      close={() => (ending.value = undefined)}
    >
      <label class="asked">Reason that the client gets, {REASON_MAX} characters at most
        <span class="field"><input autofocus maxLength={REASON_MAX} autocomplete="off" value={reason} onInput={(event) => setReason(event.currentTarget.value)} /></span>
      </label>
      <label class="choice"><input type="checkbox" checked={mayReturn} onChange={(event) => setReturn(event.currentTarget.checked)} /> It may connect again by itself</label>
    </Confirm>
  );
}

const CHOICES = [["before", "All tokens until now"], ["device", "Those of a device"], ["tokenId", "One token, by its id"]] as const;

function Revoke({ user, devices, after }: { readonly user: string; readonly devices: readonly string[]; readonly after: () => void }) {
  const [choice, setChoice] = useState<"before" | "device" | "tokenId">("before");
  const [device, setDevice] = useState(devices[0] ?? "");
  const [tokenId, setTokenId] = useState("");
  const what: Revoked = choice === "before" ? { before: "now" } : choice === "device" ? { device: device.trim() } : { tokenId: tokenId.trim() };
  const isWhole = choice === "before" || (choice === "device" ? device.trim() !== "" : tokenId.trim() !== "");
  return (
    <form onSubmit={(event) => { event.preventDefault(); if (isWhole) void revokeNow(user, what, after); }}>
      <h2>Revoke tokens of {user}?</h2>
      <fieldset class="choices">
        <legend class="sr">Which tokens</legend>
        {CHOICES.map(([name, label]) => (
          <label class="choice"><input type="radio" name="which" checked={choice === name} onChange={() => setChoice(name)} /> {label}</label>
        ))}
      </fieldset>
      {choice === "device" && (
        <label class="asked">Device
          <span class="field"><input list="devices" autocomplete="off" maxLength={64} value={device} onInput={(event) => setDevice(event.currentTarget.value)} /></span>
          <datalist id="devices">{devices.map((it) => <option value={it} />)}</datalist>
        </label>
      )}
      {choice === "tokenId" && (
        <label class="asked">Id of the token, its claim <code>jti</code>
          <span class="field"><input autocomplete="off" maxLength={128} value={tokenId} onInput={(event) => setTokenId(event.currentTarget.value)} /></span>
        </label>
      )}
      <p class="soft">{revokeWords(user, what)}</p>
      {failed.value && <Failed error={failed.value} />}
      <div class="actions">
        {isWhole && <CopyButton label="Copy as curl" text={() => curl("POST", location.origin, userPath(user, "revoke"), what)} />}
        <button type="button" class="button" onClick={() => (ending.value = undefined)}>Keep them</button>
        <button type="submit" class="button danger" disabled={!isWhole || isSilent.value}>Revoke</button>
      </div>
    </form>
  );
}

/** Asks before connections or tokens end; `after` is called once something may have changed. */
export function EndingDialog({ after }: { readonly after: () => void }) {
  const it = ending.value;
  useEffect(() => {
    failed.value = undefined;
  }, [it]);
  return (
    <Modal label={it && "revoke" in it ? "Revoke tokens" : "Kick"} isOpen={it !== undefined} close={() => (ending.value = undefined)}>
      {it && ("kick" in it ? <Kick it={it.kick} after={after} /> : <Revoke user={it.revoke} devices={it.devices} after={after} />)}
    </Modal>
  );
}
