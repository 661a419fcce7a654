import { type ComponentType } from "preact";
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { boot } from "../live/boot.ts";
import { keyAsked } from "../live/key.ts";
import { Icon, Mark } from "../parts/icon.tsx";
import { TryIt } from "../try/view.tsx";
import { Progress } from "../parts/progress.tsx";
import { Banners } from "./banners.tsx";
import { Dialogs } from "./dialogs.tsx";
import { KeyForm } from "./keyform.tsx";
import { dialog } from "./keys.ts";
import { entries, type Entry } from "./nav.ts";
import { Navigation, badge } from "./navigation.tsx";
import { current, go } from "./router.ts";
import { isSilent } from "./silence.ts";
import { dark, toggleTheme } from "./theme.ts";

/** Views that are loaded when they are opened. */
const LATER: Record<string, () => Promise<{ default: ComponentType }>> = {
  "/overview": () => import("../views/overview.tsx"),
  "/messages": () => import("../views/messages.tsx"),
  "/events": () => import("../views/events.tsx"),
  "/errors": () => import("../views/errors.tsx"),
  "/nodes": () => import("../views/nodes.tsx"),
  "/connections": () => import("../views/connections.tsx"),
  "/people": () => import("../views/people.tsx"),
  "/groups": () => import("../views/groups.tsx"),
  "/webhooks": () => import("../views/webhooks.tsx"),
  "/guard": () => import("../guard/view.tsx"),
  "/styleguide": () => import("../views/styleguide.tsx"),
};
const loaded = signal<Record<string, ComponentType>>({ "/try": TryIt });
/** Views whose files could not be loaded. */
const unloaded = signal<ReadonlySet<string>>(new Set());

function loadView(at: string): void {
  const load = LATER[at];
  if (!load || loaded.value[at]) return;
  const without = new Set([...unloaded.value].filter((it) => it !== at));
  unloaded.value = without;
  load().then(
    (view) => (loaded.value = { ...loaded.value, [at]: view.default }),
    () => (unloaded.value = new Set([...without, at])),
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
      <button class="button square help" type="button" aria-label="Copy as curl" title="Commands that print what this view shows" onClick={() => (dialog.value = "commands")}>
        <Icon name="copy" />
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
  const isGuide = at === "/styleguide" && (it?.development ?? false);
  const known = at === "/" || isGuide || list.some((entry) => entry.path === at);
  useEffect(() => {
    if (at === "/" && it) go(it.development ? "/try" : "/overview", true);
    if (known) loadView(at);
  }, [at, it, known]);
  const name = list.find((entry) => entry.path === at)?.label;
  useEffect(() => {
    document.title = [name, it?.node, "Tidegate"].filter(Boolean).join(" · ");
  }, [name, it]);
  const View = known ? loaded.value[at] : undefined;
  const isOff = unloaded.value.has(at);
  const tabs = ["/overview", "/messages", "/nodes", list.some((entry) => entry.path === "/try") ? "/try" : "/guard"];
  const [first, rest] = [list.filter((entry) => tabs.includes(entry.path)), list];
  return (
    <>
      <a class="skip" href="#content" onClick={(event) => { event.preventDefault(); document.getElementById("content")?.focus(); }}>Skip to the content</a>
      <div class="shell">
        <Navigation list={list} />
        <main class={isSilent.value ? "panel silent" : "panel"} id="content" tabIndex={-1}>
          <Progress isBusy={!it || (known && !View && !isOff)} />
          {keyAsked.value ? <KeyForm /> : View ? <View /> : <Frame known={known} title={name ?? "Tidegate"} again={isOff ? () => loadView(at) : undefined} />}
          <Banners />
        </main>
        <nav class="tabs" aria-label="Views">
          {first.map((entry) => (
            <a href={entry.path} aria-current={at === entry.path ? "page" : undefined}>
              <Icon name={entry.icon} />
              {entry.label}
            </a>
          ))}
          {rest.length > first.length && (
            <More list={rest.filter((entry) => !first.includes(entry))} />
          )}
        </nav>
      </div>
      <Dialogs list={list} />
    </>
  );
}

/** Opens the views that have no tab, and has the count of the first of them that has one. */
function More({ list }: { readonly list: readonly Entry[] }) {
  const [entry, count, words] = list.map((it) => [it, ...badge(it.path)] as const).find(([, count]) => count > 0) ?? [];
  return (
    <button type="button" aria-label={entry ? `More. ${entry.label}: ${words}` : "More"} onClick={() => (dialog.value = "find")}>
      <Icon name="more" />
      More
      {entry && <span class="count-badge" title={words}>{count}</span>}
    </button>
  );
}

/** The page without a view: before its files have arrived, or where there is none. */
function Frame({ known, title, again }: { readonly known: boolean; readonly title: string; readonly again: (() => void) | undefined }) {
  return (
    <>
      <Header title={known ? title : current() === "/try" ? "Try it" : "Not a view"} />
      {again && (
        <div class="failed" role="status">
          <span class="grow"><b>No answer</b> The files of this view could not be loaded. Check that the node runs; a node of another version has other files.</span>
          <button type="button" class="link" onClick={again}>Try again</button>
          <button type="button" class="link" onClick={() => location.reload()}>Reload</button>
        </div>
      )}
      {!known && boot.value && (
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
