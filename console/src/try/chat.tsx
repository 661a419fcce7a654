import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { Icon } from "../parts/icon.tsx";
import { keepEnd } from "../parts/keepend.ts";
import { FIRST } from "../words/lines.ts";
import { capital, duration } from "../words/numbers.ts";
import type { Person } from "./person.ts";
import type { Shown, Stage } from "./stage.ts";

/** The message under the pointer: its bubbles and its frames light up together. */
export const hovered = signal("");

/** Bubbles that are drawn in a chat. */
const DRAWN = 80;

/** State of a person's link in words, with the tone of its dot. */
export function linkWords(person: Person): readonly [string, string] {
  const state = person.state.value;
  const now = performance.now();
  if (person.isLive) return person.away && person.away.until > now ? ["", `Back, after ${duration(person.away.ms)}`] : ["", "Connected"];
  switch (state.name) {
    case "offline":
      return ["off", "Offline"];
    case "closed":
      return ["red", state.error?.name === "REPLACED" ? "Another tab took over" : `Closed${state.error ? `: ${state.error.name}` : ""}`];
    case "waiting": {
      const ms = (state.retryAt ?? 0) - Date.now();
      return ["red", ms > 0 ? `Gone, tries again in ${duration(ms)}` : "Gone, connecting"];
    }
    default:
      return person.goneAt === undefined ? ["amber", "Connecting"] : ["red", `Gone for ${duration(now - person.goneAt)}`];
  }
}

function Ticks({ it, stage }: { readonly it: Shown; readonly stage: Stage }) {
  void stage.version.value;
  if (it.state === "refused") {
    return (
      <span class="ticks refused">
        <Icon name="cross" />
        {it.note || "refused"}
      </span>
    );
  }
  if (it.state === "held") return <span class="ticks">kept back</span>;
  if (it.state !== "acked") return <span class="ticks">{it.state === "waits" ? "waits for the link" : "sent"}</span>;
  const others = stage.people.length - 1;
  const [acked, read] = [it.ackedBy.size >= others, it.readBy.size >= others];
  const words = read ? "read" : acked ? "the other client acked the push" : "accepted";
  return (
    <span class={`ticks${read ? " read" : ""}`} title={`${capital(words)}. This page holds both connections, and takes the second tick and its colour from the receiver’s side.`}>
      {stage.mode !== "room" && <span class="num">{it.seq}</span>}
      <Icon name={acked ? "ticks" : "tick"} />
      <span class="sr">{words}</span>
    </span>
  );
}

function Bubble({ stage, person, it }: { readonly stage: Stage; readonly person: Person; readonly it: Shown }) {
  void stage.version.value;
  const isOwn = it.sender === person.name;
  return (
    <li
      class={`bubble${isOwn ? " own" : ""}${it.state === "refused" || it.state === "held" ? " refused" : ""}${hovered.value === it.cid ? " lit" : ""} appear`}
      onMouseEnter={() => (hovered.value = it.cid)}
      onMouseLeave={() => (hovered.value = "")}
    >
      {!isOwn && stage.people.length > 2 && <span class="from">{it.sender}</span>}
      <p><bdi>{it.text}</bdi></p>
      <span class="row below">
        {it.isOfPage && <span class="of-page" title="The page wrote this for a break.">by the page</span>}
        {isOwn ? <Ticks it={it} stage={stage} /> : <span class="ticks num">{stage.mode === "room" ? "" : it.seq}</span>}
      </span>
    </li>
  );
}

/** One person: who it is, the chat, and the composer. */
export function ChatPane({ stage, person, isFirst }: { readonly stage: Stage; readonly person: Person; readonly isFirst: boolean }) {
  void stage.version.value;
  const [tone, words] = linkWords(person);
  const list = useRef<HTMLOListElement>(null);
  const input = useRef<HTMLInputElement>(null);
  const typed = useRef(0);
  useLayoutEffect(() => {
    if (list.current) list.current.scrollTop = list.current.scrollHeight;
  }, [person.lines.length, person.typingUntil > performance.now()]);
  useLayoutEffect(() => keepEnd(list.current), []);
  useEffect(() => {
    const it = input.current;
    if (!isFirst || !it) return;
    it.value = FIRST;
    if (matchMedia("(pointer: fine)").matches || innerWidth >= 720) {
      it.focus();
      it.select();
    }
  }, []);
  const isWaiting = !person.isLive;
  const isClosed = person.state.value.name === "closed";
  const send = (event: Event) => {
    event.preventDefault();
    const text = input.current?.value.trim() ?? "";
    if (!text || !input.current || isClosed) return;
    input.current.value = "";
    void stage.say(person, text);
  };
  const type = () => {
    if (performance.now() - typed.current < 2500 || !person.isLive || stage.mode === "room") return;
    typed.current = performance.now();
    const to = stage.mode === "pair" ? stage.other(person).name : stage.conv;
    void person.client.signal(to, "typing").catch(() => {});
  };
  const typer = person.typingUntil > performance.now() ? stage.other(person).name : "";
  return (
    <section class={`chat chat-${stage.people.indexOf(person)}`} aria-label={person.name}>
      <div class="chat-head">
        <span class="avatar" aria-hidden="true">{capital(person.name).charAt(0)}</span>
        <div class="grow">
          <b>{person.name}</b>
          <span class="quiet small">{person.device}{person.node ? ` on ${person.node}` : ""}</span>
        </div>
        <span class={`link-state ${tone}`}>
          <i class={`dot ${tone}`} />
          {words}
        </span>
      </div>
      <ol class="bubbles" ref={list} tabIndex={0} aria-label={`What ${person.name} sees`}>
        {person.lines.slice(-DRAWN).map((line) => {
          if ("remark" in line) return <li class={`remark ${line.tone}`}><span>{line.remark}</span></li>;
          const it = stage.messages.get(line.cid);
          return it && <Bubble key={line.cid} stage={stage} person={person} it={it} />;
        })}
      </ol>
      <p class="typing small">{typer && <><i class="dots" aria-hidden="true"><i /><i /><i /></i>{typer} is typing</>}</p>
      <form class={`composer${isWaiting ? " waiting" : ""}`} onSubmit={send}>
        <input
          ref={input}
          aria-label={`Write as ${person.name}`}
          placeholder={isClosed ? "Closed" : isWaiting ? `Sends when ${person.name} is back` : `Write as ${person.name}`}
          autocomplete="off"
          tabIndex={isFirst ? 1 : 2}
          onInput={type}
        />
        <button type="submit" disabled={isClosed} aria-label={`Send as ${person.name}`}>
          <Icon name="send" />
        </button>
      </form>
    </section>
  );
}
