import { type ComponentType } from "preact";
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { boot } from "../live/boot.ts";
import { seconds, stream } from "../live/stats.ts";
import { Icon, Mark } from "../parts/icon.tsx";
import { TryIt } from "../try/view.tsx";
import { Dialogs } from "./dialogs.tsx";
import { dialog } from "./keys.ts";
import { entries, type Entry } from "./nav.ts";
import { go, path } from "./router.ts";
import { dark, toggleTheme } from "./theme.ts";

/** Views that are loaded when they are opened. */
const LATER: Record<string, () => Promise<{ default: ComponentType }>> = {
  "/overview": () => import("../views/overview.tsx"),
  "/messages": () => import("../views/messages.tsx"),
  "/events": () => import("../views/events.tsx"),
  "/errors": () => import("../views/errors.tsx"),
  "/nodes": () => import("../views/nodes.tsx"),
  "/people": () => import("../views/people.tsx"),
};
const loaded = signal<Record<string, ComponentType>>({ "/try": TryIt });

function current(): string {
  return `/${path.value.split("/")[1] ?? ""}`;
}

function Navigation({ list }: { readonly list: readonly Entry[] }) {
  const it = boot.value;
  return (
    <nav class="nav" aria-label="Views">
      <div class="brand">
        <Mark />
        <span>Tidegate</span>
      </div>
      <div class="where">
        <i class={stream.value.live ? "dot" : "dot off"} />
        <span class="cut">{it?.node ?? "–"}</span>
        <span>{it ? (it.nodes > 1 ? `${it.nodes} nodes` : it.development ? "development" : "one node") : ""}</span>
      </div>
      {(["", "Watch", "Operate"] as const).map((group) => (
        <>
          {group && <h2>{group}</h2>}
          {list.filter((entry) => entry.group === group).map((entry) => (
            <a class="nav-item" href={entry.path} title={entry.label} aria-current={current() === entry.path ? "page" : undefined}>
              <Icon name={entry.icon} />
              <span>{entry.label}</span>
            </a>
          ))}
        </>
      ))}
      <Foot />
    </nav>
  );
}

/** Seconds since the node was last heard; undefined before the first time. */
function silence(): number | undefined {
  void seconds.value;
  const { heard } = stream.value;
  return heard ? Math.max(0, Math.floor((performance.now() - heard) / 1000)) : undefined;
}

function Foot() {
  const age = silence();
  const text = age === undefined ? "Connecting" : age <= 2 ? "Live" : `Last heard ${age} s ago`;
  return (
    <div class="foot">
      <div class="row">
        <i class={age !== undefined && age <= 2 ? "dot" : "dot off"} />
        <span>{text}</span>
      </div>
      <span>{boot.value?.version ?? ""}</span>
    </div>
  );
}

function Silent() {
  const age = silence();
  if (age === undefined || age < 5) return null;
  return (
    <div class="banner" role="alert">
      {boot.value?.node ?? "The node"} does not answer. What you see is {age} s old. Trying again.
    </div>
  );
}

/** Search, theme and help, at the right of each view's header. */
export function Tools() {
  return (
    <div class="tools">
      <button class="find" type="button" aria-label="Find or jump to" onClick={() => (dialog.value = "find")}>
        <Icon name="search" />
        <span>Find or jump to</span>
        <kbd>Ctrl K</kbd>
      </button>
      <button class="button square" type="button" aria-label={dark.value ? "Light theme" : "Dark theme"} title="Light or dark (d)" onClick={toggleTheme}>
        <Icon name={dark.value ? "sun" : "moon"} />
      </button>
      <button class="button square help" type="button" aria-label="Keys" title="Keys (?)" onClick={() => (dialog.value = "keys")}>
        <Icon name="help" />
      </button>
    </div>
  );
}

/** The frame of all views. */
export function Shell() {
  const it = boot.value;
  const list = entries(it?.development ?? location.pathname.startsWith("/try"));
  const at = current();
  useEffect(() => {
    if (at === "/" && it) go(it.development ? "/try" : "/overview", true);
    const load = LATER[at];
    if (load && !loaded.value[at]) void load().then((view) => (loaded.value = { ...loaded.value, [at]: view.default }));
  }, [at, it]);
  const name = list.find((entry) => entry.path === at)?.label;
  useEffect(() => {
    document.title = [name, it?.node, "Tidegate"].filter(Boolean).join(" · ");
  }, [name, it]);
  const View = list.some((entry) => entry.path === at) ? loaded.value[at] : undefined;
  const known = at === "/" || list.some((entry) => entry.path === at);
  const [first, rest] = [list.filter((entry) => ["/try", "/overview", "/messages", "/nodes"].includes(entry.path)), list];
  return (
    <>
      <a class="skip" href="#content" onClick={(event) => { event.preventDefault(); document.getElementById("content")?.focus(); }}>Skip to the content</a>
      <div class="shell">
        <Navigation list={list} />
        <main class="panel" id="content" tabIndex={-1}>
          {View ? <View /> : <Empty known={known} />}
          <Silent />
        </main>
        <nav class="tabs" aria-label="Views">
          {first.map((entry) => (
            <a href={entry.path} aria-current={at === entry.path ? "page" : undefined}>
              <Icon name={entry.icon} />
              {entry.label}
            </a>
          ))}
          {rest.length > first.length && (
            <button type="button" onClick={() => (dialog.value = "find")}>
              <Icon name="more" />
              More
            </button>
          )}
        </nav>
      </div>
      <Dialogs list={list} />
    </>
  );
}

function Empty({ known }: { readonly known: boolean }) {
  return (
    <>
      <header>
        <h1>{known ? "Tidegate" : current() === "/try" ? "Try it" : "Not a view"}</h1>
        <Tools />
      </header>
      {!known && (
        <p class="note">
          {current() === "/try"
            ? "Try it exists on nodes for development only: it creates tokens, cuts links and drains the node. The setting is admin.development."
            : "This page has no view at this address. Choose one in the navigation."}
        </p>
      )}
    </>
  );
}

/** The header of a view: its title, what stands after it, and the tools of all views. */
export function Header({ title, children }: { readonly title: string; readonly children?: preact.ComponentChildren }) {
  return (
    <header>
      <span class="brand"><Mark /></span>
      <h1>{title}</h1>
      {children}
      <Tools />
    </header>
  );
}
