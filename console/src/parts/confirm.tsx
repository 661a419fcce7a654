import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { isSilent } from "../app/silence.ts";
import { ApiError } from "../live/api.ts";
import { curl } from "../words/nodes.ts";
import { CopyButton } from "./copy.tsx";
import { Failed } from "./failed.tsx";

/** A question before something is removed, with the request behind it; it stays open while that fails. */
export function Confirm({ title, words, path, keep, verb, run, done, close, children }: {
  readonly title: string;
  /** What the request does. */
  readonly words: string;
  readonly path: string;
  /** Labels of the buttons that change nothing, and that act. */
  readonly keep: string;
  readonly verb: string;
  /** Sends the request, and returns what came of it. */
  readonly run: () => Promise<string>;
  readonly done: (said: string) => void;
  readonly close: () => void;
  /** Further fields of the request. */
  readonly children?: ComponentChildren;
}) {
  const [failed, setFailed] = useState<ApiError | undefined>(undefined);
  const act = async () => {
    try {
      done(await run());
      close();
    } catch (error) {
      if (error instanceof ApiError) setFailed(error);
    }
  };
  return (
    <form onSubmit={(event) => { event.preventDefault(); void act(); }}>
      <h2>{title}</h2>
      <p class="soft">{words}</p>
      {children}
      {failed && <Failed error={failed} />}
      <div class="actions">
        <CopyButton label="Copy as curl" text={() => curl("DELETE", location.origin, path)} />
        <button type="button" class="button" autofocus={!children} onClick={close}>{keep}</button>
        <button type="submit" class="button danger" disabled={isSilent.value}>{verb}</button>
      </div>
    </form>
  );
}
