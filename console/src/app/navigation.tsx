import { boot, allows } from "../live/boot.ts";
import { codeCounts, rising } from "../live/codes.ts";
import { Icon, Mark } from "../parts/icon.tsx";
import { plural } from "../words/numbers.ts";
import type { Entry } from "./nav.ts";
import { current } from "./router.ts";
import { silence } from "./silence.ts";

/** What stands at an entry: a count that matters now, in words. */
export function badge(path: string): readonly [number, string] {
  if (path !== "/errors" || !allows("codes")) return [0, ""];
  const count = rising(codeCounts.value).length;
  return [count, count > 0 ? `${plural(count, "code")} rose in the last 5 minutes` : ""];
}

function Item({ entry }: { readonly entry: Entry }) {
  const [count, words] = badge(entry.path);
  const label = words ? `${entry.label}: ${words}` : entry.label;
  return (
    <a class="nav-item" href={entry.path} aria-label={label} aria-current={current() === entry.path ? "page" : undefined}>
      <Icon name={entry.icon} />
      <span>{entry.label}</span>
      {count > 0 && <span class="count-badge" title={words}>{count}</span>}
      <span class="tip" aria-hidden="true">{label}</span>
    </a>
  );
}

/** What the word at the name of the node means. */
const KINDS: Readonly<Record<string, string>> = {
  "read-only": "This console changes nothing: admin.console is read",
  development: "A node for development: its page creates tokens, and may break things",
};

/** The column of views; below 1280 px a rail of their icons. */
export function Navigation({ list }: { readonly list: readonly Entry[] }) {
  const it = boot.value;
  const kind = it ? (it.console === "read" ? "read-only" : it.nodes > 1 ? `${it.nodes} nodes` : it.development ? "development" : "one node") : "";
  return (
    <nav class="nav" aria-label="Views">
      <div class="brand">
        <Mark />
        <span>Tidegate</span>
      </div>
      <div class="where">
        <i class={isLive() ? "dot" : "dot off"} />
        <span class="cut">{it?.node ?? "–"}</span>
        <span title={KINDS[kind]}>{kind}</span>
      </div>
      {(["", "Watch", "Operate"] as const).map((group) => (
        <>
          {group && <h2>{group}</h2>}
          {list.filter((entry) => entry.group === group).map((entry) => <Item key={entry.path} entry={entry} />)}
        </>
      ))}
      <Foot />
    </nav>
  );
}

/** Whether the node has answered in the last two seconds. */
function isLive(): boolean {
  const age = silence();
  return age !== undefined && age <= 2;
}

function Foot() {
  const age = silence();
  const text = age === undefined ? "Connecting" : age <= 2 ? "Live" : `Last answer ${age} s ago`;
  return (
    <div class="foot" title={text}>
      <div class="row">
        <i class={isLive() ? "dot" : "dot off"} />
        <span>{text}</span>
      </div>
      <span>{boot.value?.version ?? ""}</span>
    </div>
  );
}
