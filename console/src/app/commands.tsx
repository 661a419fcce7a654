import { asked, curl } from "../live/asked.ts";
import { keyHeader } from "../live/key.ts";
import { CopyButton } from "../parts/copy.tsx";
import { dialog } from "./keys.ts";

/** What the open view has read, as commands that print the same outside of the page. */
export function Commands() {
  const hasKey = Object.keys(keyHeader()).length > 0;
  const all = asked.value.map((path) => [path, curl(path, location.origin)] as const);
  return (
    <>
      <h2>What this view has read</h2>
      {all.length === 0 && <p class="soft">Nothing yet.</p>}
      <ul class="commands">
        {all.map(([path, command]) => (
          <li key={path} class="row">
            <code class="grow cut" title={command}>{path}</code>
            <CopyButton label="Copy as curl" text={() => command} />
          </li>
        ))}
      </ul>
      {hasKey && <p class="soft">The commands take the key from the variable <code>TIDEGATE_KEY</code>.</p>}
      <div class="actions"><button class="button" type="button" onClick={() => (dialog.value = "")}>Close</button></div>
    </>
  );
}
