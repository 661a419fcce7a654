import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { boot, nodeClass } from "../live/boot.ts";
import { Icon, type IconName } from "../parts/icon.tsx";
import { keepEnd } from "../parts/keepend.ts";
import { describe, type FrameWords } from "../words/wire.ts";
import type { Item, Wire } from "./items.ts";
import { DEVICE } from "./person.ts";
import { hovered } from "./chat.tsx";

/** Frames of a login, which leave no room for the conversation on a phone. */
const LOGIN = new Set(["hello", "welcome", "sync", "state", "syncEnd"]);

/** Rows that are drawn at once. */
const DRAWN = 240;

function clock(at: number): string {
  const date = new Date(performance.timeOrigin + at);
  return `${String(date.getSeconds()).padStart(2, "0")}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

/** What the wire is drawn from. */
export interface WireSource {
  readonly version: { readonly value: number };
  readonly people: readonly { readonly name: string; readonly node: string }[];
  /** Nodes that the people are connected to. */
  readonly nodes: readonly string[];
  readonly wire: Wire;
  readonly conv: string;
  readonly isDurable: boolean;
  /** Milliseconds from receipt to sync of a message. */
  syncMs(cid: string): number | undefined;
}

/** Describes the frame of a row. */
export function wordsOf(stage: WireSource, item: Item): FrameWords | undefined {
  if (item.kind !== "frame") return undefined;
  const person = stage.people[item.person];
  const known = { syncMs: (id: string) => stage.syncMs(id), durable: stage.isDurable, device: DEVICE, node: person?.node ?? "", conv: stage.conv };
  return describe(item.frame, item.direction, person?.name ?? "", known);
}

/** Rows that are worth showing: marks, and frames that have words. */
export function visible(stage: WireSource): Item[] {
  const found: Item[] = [];
  for (let index = stage.wire.items.length - 1; index >= 0 && found.length < DRAWN; index -= 1) {
    const item = stage.wire.items[index];
    if (item && (item.kind === "mark" || wordsOf(stage, item))) found.push(item);
  }
  return found.reverse();
}

/** Columns of a row: the segment or segments between a person's line and the node's. */
function span(person: number): string {
  return person === 0 ? "span-0" : `span-${person}`;
}

/** A row. Its properties are plain values, so that only rows that change are drawn again. */
function Row(props: {
  readonly at: number; readonly who: string; readonly person: number; readonly toNode: boolean; readonly cid: string; readonly raw: string;
  readonly name: string; readonly words: string; readonly tone: string; readonly synced: boolean; readonly icon: IconName | undefined;
  readonly covers: string; readonly isOpen: boolean; readonly isTabStop: boolean; readonly rowKey: number; readonly onOpen: () => void;
}) {
  const { cid, person, toNode, name } = props;
  const isRight = person === 0 ? toNode : !toNode;
  const isLit = cid !== "" && hovered.value === cid;
  const Shape = name ? "button" : "div";
  // One row is in the order of Tab; the arrow keys move from row to row.
  const press = name ? { type: "button" as const, tabIndex: props.isTabStop ? 0 : -1, "aria-expanded": props.isOpen, "data-row": props.rowKey, onClick: props.onOpen } : {};
  return (
    <li class={LOGIN.has(name) ? "login" : undefined}>
      <Shape
        class={`wire-row${name ? " pressable" : ""}${isLit ? " lit" : ""}${props.isOpen ? " open" : ""}`}
        {...press}
        onMouseEnter={() => cid && (hovered.value = cid)}
        onMouseLeave={() => cid && (hovered.value = "")}
      >
        <time class="mono">{clock(props.at)}</time>
        {props.covers && props.covers.split("|").map((cover, index) => cover && <i class={`band band-${index} ${cover}`} />)}
        {name ? (
          <span class={`arrow ${span(person)} ${isRight ? "right" : "left"} ${props.tone}${props.synced ? " synced" : ""}`}>
            <span class="phone-arrow" aria-hidden="true"><Icon name={toNode === (person === 0) ? "arrowDown" : "arrowUp"} />{props.who}</span>
            <span class="sr">{toNode ? `${props.who} to the node` : `the node to ${props.who}`}</span>
            <i class="stem" />
            <b>{name}</b>
            {props.words && <span class="cut">{props.words}</span>}
            <i class="stem" />
          </span>
        ) : (
          <span class={`mark ${span(person)} ${props.tone}`}>
            {props.icon && <Icon name={props.icon} />}
            <span class="cut">{props.words}</span>
          </span>
        )}
      </Shape>
      {props.isOpen && (
        <div class="raw">
          <code>{props.raw}</code>
          {cid && <a href={`/messages?msg=${encodeURIComponent(cid)}`}>What happened to it</a>}
        </div>
      )}
    </li>
  );
}

/** Moves the focus between the rows by the arrow keys, Home and End. */
function moveRow(event: KeyboardEvent & { readonly currentTarget: HTMLElement }): void {
  const rows = [...event.currentTarget.querySelectorAll<HTMLElement>("button.wire-row")];
  const at = rows.findIndex((row) => row === document.activeElement);
  const targets: Readonly<Record<string, number>> = { ArrowUp: at - 1, ArrowDown: at + 1, Home: 0, End: rows.length - 1 };
  const to = targets[event.key];
  if (at < 0 || to === undefined) return;
  event.preventDefault();
  rows[Math.min(Math.max(to, 0), rows.length - 1)]?.focus();
}

/** The wire: three lifelines or more, and a row for each frame. */
export function WireView({ stage }: { readonly stage: WireSource }) {
  void stage.version.value;
  const box = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const [open, setOpen] = useState(0);
  const [focused, setFocused] = useState(0);
  const items = visible(stage);
  const frames = items.filter((item) => item.kind === "frame");
  const tabStop = frames.some((item) => item.key === focused) ? focused : (frames.at(-1)?.key ?? 0);
  useLayoutEffect(() => {
    if (follows.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  });
  useLayoutEffect(() => keepEnd(box.current, () => follows.current), []);
  const handlers = useRef(new Map<number, () => void>());
  const toggles = (key: number) => {
    const known = handlers.current.get(key) ?? (() => setOpen((before) => (before === key ? 0 : key)));
    handlers.current.set(key, known);
    return known;
  };
  const covers = (key: number) => {
    const list = stage.people.map((_, person) => {
      const cover = stage.wire.cover(person, key);
      if (!cover) return "";
      return `${cover.tone}${cover.isGone ? " gone" : ""}${cover.isFirst ? " first" : ""}${cover.isLast ? " last" : ""}`;
    });
    return list.some(Boolean) ? list.join("|") : "";
  };
  const nodes = stage.nodes.length > 0 ? stage.nodes : [boot.value?.node ?? ""];
  const people = stage.people.length;
  return (
    <section class={`wire of-people-${people}`} aria-label="The wire">
      <div class="wire-head">
        {stage.people.map((person, index) => (
          <div class={`head-${index}`}>
            <b>{person.name}</b>
            <span class="quiet small">WebSocket</span>
          </div>
        ))}
        <div class="head-node">
          <span class="row">{nodes.map((node) => <span key={node} class={nodeClass(node)}><b class="node">{node}</b></span>)}</span>
          <span class="quiet small">orders, writes, pushes</span>
        </div>
      </div>
      <div
        class="wire-body"
        ref={box}
        tabIndex={frames.length > 0 ? undefined : 0}
        onScroll={(event) => {
          const it = event.currentTarget;
          follows.current = it.scrollHeight - it.scrollTop - it.clientHeight < 30;
        }}
      >
        <div class="wire-inner">
          <div class="lifelines" aria-hidden="true">
            {stage.people.map((_, index) => <i class={`line-${index}`} />)}
            <i class="line-node" />
          </div>
          <ol
            aria-label="Frames; the arrow keys move, Enter opens one"
            onKeyDown={moveRow}
            onFocusIn={(event) => setFocused(Number((event.target as HTMLElement).dataset["row"] ?? 0))}
            onFocusOut={(event) => event.currentTarget.contains(event.relatedTarget as Node | null) || setFocused(0)}
          >
            {items.map((item) => {
              const words = wordsOf(stage, item);
              return (
                <Row
                  key={item.key}
                  at={item.at}
                  person={item.person}
                  who={stage.people[item.person]?.name ?? ""}
                  toNode={item.kind === "frame" && item.direction === "out"}
                  cid={item.kind === "frame" ? item.cid : ""}
                  raw={item.kind === "frame" ? item.frame.raw : ""}
                  name={words?.name ?? ""}
                  words={item.kind === "mark" ? item.text : (words?.words ?? "")}
                  tone={item.kind === "mark" ? item.tone : (words?.tone ?? "")}
                  synced={words?.synced ?? false}
                  icon={item.kind === "mark" ? item.icon : undefined}
                  covers={covers(item.key)}
                  isOpen={open === item.key}
                  isTabStop={tabStop === item.key}
                  rowKey={item.key}
                  onOpen={toggles(item.key)}
                />
              );
            })}
          </ol>
        </div>
      </div>
    </section>
  );
}
