import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { isSilent } from "../app/silence.ts";
import { ApiError } from "../live/api.ts";
import { REASON_BYTES_MAX, SUBJECTS, addEntry, entryPath, entryRequest, isReason, liftEntry, type ListName } from "../live/guard.ts";
import { Confirm } from "../parts/confirm.tsx";
import { CopyButton } from "../parts/copy.tsx";
import { Failed } from "../parts/failed.tsx";
import { Modal } from "../parts/modal.tsx";
import { LISTS, TIMES, addWords, changedWords, liftWords, subjectParts } from "../words/guard.ts";
import { curl } from "../words/nodes.ts";

/** What a person is asked to confirm: a new entry, whose subject may be known, or the end of one. */
export const acting = signal<{ readonly list: ListName; readonly subject: string; readonly isLift: boolean } | undefined>(undefined);

/** What was done last, in words. */
export const outcome = signal("");

const failed = signal<ApiError | undefined>(undefined);

async function add(list: ListName, subject: string, reason: string, ttlMs: number | undefined, after: () => void): Promise<void> {
  try {
    outcome.value = changedWords(list, subject, true, await addEntry(list, subject, reason, ttlMs));
    acting.value = undefined;
    failed.value = undefined;
  } catch (error) {
    if (error instanceof ApiError) failed.value = error;
  }
  after();
}

function Lift({ list, subject, after }: { readonly list: ListName; readonly subject: string; readonly after: () => void }) {
  const [question, more] = liftWords(list, subject);
  return (
    <Confirm
      title={question}
      words={more}
      path={entryPath(list, subject)}
      keep="Keep it"
      verb={LISTS[list].lift}
      run={async () => changedWords(list, subject, false, await liftEntry(list, subject).finally(after))}
      done={(said) => (outcome.value = said)}
      close={() => (acting.value = undefined)}
    />
  );
}

function Add({ list, subject: given, after }: { readonly list: ListName; readonly subject: string; readonly after: () => void }) {
  const kinds = SUBJECTS[list];
  const [kindGiven, nameGiven] = subjectParts(given);
  const [kind, setKind] = useState(kindGiven || (kinds[0]?.[0] ?? ""));
  const [name, setName] = useState(nameGiven);
  const [reason, setReason] = useState("");
  const [time, setTime] = useState(0);
  const subject = `${kind}:${name.trim()}`;
  const ttlMs = TIMES[time]?.[1];
  const isWhole = name.trim() !== "" && isReason(reason.trim());
  const [method, path, body] = entryRequest(list, subject, reason.trim(), ttlMs);
  return (
    <form onSubmit={(event) => { event.preventDefault(); if (isWhole) void add(list, subject, reason.trim(), ttlMs, after); }}>
      <h2>{LISTS[list].add}</h2>
      <div class="pair">
        <label>What
          <span class="field pick"><select value={kind} disabled={kinds.length === 1} onChange={(event) => setKind(event.currentTarget.value)}>{kinds.map(([it]) => <option value={it}>{it}</option>)}</select></span>
        </label>
        <label>Which
          <span class="field"><input autofocus={!given} autocomplete="off" maxLength={130} placeholder={`such as ${kinds.find(([it]) => it === kind)?.[1] ?? ""}`} value={name} onInput={(event) => setName(event.currentTarget.value)} /></span>
        </label>
      </div>
      <label class="asked">Reason, for operators; {REASON_BYTES_MAX} bytes at most
        <span class="field"><input autofocus={given !== ""} autocomplete="off" maxLength={REASON_BYTES_MAX} value={reason} onInput={(event) => setReason(event.currentTarget.value)} /></span>
      </label>
      <label class="asked">For
        <span class="field pick"><select value={time} onChange={(event) => setTime(Number(event.currentTarget.value))}>{TIMES.map(([words], index) => <option value={index}>{words}</option>)}</select></span>
      </label>
      <p class="soft">{addWords(list, subject)}</p>
      {failed.value && <Failed error={failed.value} />}
      <div class="actions">
        {isWhole && <CopyButton label="Copy as curl" text={() => curl(method, location.origin, path, body)} />}
        <button type="button" class="button" onClick={() => (acting.value = undefined)}>Cancel</button>
        <button type="submit" class={list === "allow" ? "button primary" : "button danger"} disabled={!isWhole || isSilent.value}>{LISTS[list].add}</button>
      </div>
    </form>
  );
}

/** Asks before an entry is added or removed; `after` is called once something may have changed. */
export function ActingDialog({ after }: { readonly after: () => void }) {
  const it = acting.value;
  useEffect(() => {
    failed.value = undefined;
  }, [it]);
  return (
    <Modal label={it ? LISTS[it.list][it.isLift ? "lift" : "add"] : "Guard"} isOpen={it !== undefined} close={() => (acting.value = undefined)}>
      {it && (it.isLift ? <Lift list={it.list} subject={it.subject} after={after} /> : <Add list={it.list} subject={it.subject} after={after} />)}
    </Modal>
  );
}
