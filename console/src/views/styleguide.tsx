import type { ComponentChildren } from "preact";
import { useLayoutEffect, useMemo } from "preact/hooks";
import { Header } from "../app/shell.tsx";
import { ApiError } from "../live/api.ts";
import { nodeClass, nodeNames } from "../live/boot.ts";
import type { CloudEvent } from "../live/cloudevents.ts";
import { CopyButton } from "../parts/copy.tsx";
import { Command, Empty } from "../parts/empty.tsx";
import { EventLine } from "../parts/eventline.tsx";
import { Failed } from "../parts/failed.tsx";
import { Icon, ICONS, Mark } from "../parts/icon.tsx";
import { Sparkline } from "../parts/sparkline.tsx";
import { WireView } from "../try/wire.tsx";
import { GOOD } from "../words/sentences.ts";
import { Grid } from "./partitions.tsx";
import { RiverPicture } from "./riverpicture.tsx";
import { NODES, samplePartitions, sampleRiver, sampleWire } from "./samples.ts";
import { arrange, sends, type Step } from "./trace.ts";
import { WaterfallView } from "./waterfall.tsx";

const COLOURS = ["canvas", "surface", "sunken", "select", "line", "line2", "edge", "ink", "ink2", "ink3", "tide", "tidefill", "tidesoft", "amber", "amberfill", "ambersoft", "red", "redfill", "redsoft", "n1", "n2", "n3"];
const LINE = [2, 4, 3, 6, 8, 5, 9, 12, 11, 14, 9, 10];
const event = (type: string, data: Record<string, unknown>): CloudEvent => ({ id: type, type: `tidegate.${type}`, subject: "bob", time: "2026-01-02T14:22:07Z", data });
const EVENTS = [
  event("online", { device: "phone", node: "n1" }), event("online", { device: "phone", node: "n2", replaced: { node: "n1" } }), event("offline", { device: "phone", node: "n2" }),
  event("read", { conversation: "d:alice:bob", seq: 412 }), event("order-blocked", { expected: "01hq3", device: "phone" }),
  event("storm", { state: "storm", count: 101, threshold: 100, windowMs: 60_000 }), event("storm", { state: "over", peak: 340, threshold: 100, windowMs: 60_000 }),
];
const step = (name: string, timeUs: number, more: Partial<Step> = {}): Step => ({ step: name, node: "n1", timeUs, trace: "t", ...more });
const [SENT] = sends([
  step("received", 1_000_000, { msg: "m1", conversation: "d:alice:bob", user: "alice", device: "phone", note: "attempt 0" }),
  step("decided", 1_001_000, { msg: "m1", seq: 412, note: "partition 0: accepted" }), step("appended", 1_004_000), step("archived", 1_004_200, { seq: 412 }),
  step("answered", 1_005_000), step("pushed", 1_004_900, { node: "n2", user: "bob", device: "phone" }), step("acked", 1_090_000, { node: "n2", user: "bob", device: "phone" }),
]);
const REFUSED = new ApiError(4001, "RATE_LIMITED", "More sends than the limit allows.", "Send again after the given time.", true);
const nothing = () => {};

function Section({ title, children }: { readonly title: string; readonly children: ComponentChildren }) {
  return (
    <section>
      <h2>{title}</h2>
      {children}
    </section>
  );
}

const Samples = ({ children }: { readonly children: ComponentChildren }) => <div class="samples">{children}</div>;

function Foundations() {
  return (
    <>
      <Section title="Colours">
        <Samples>{COLOURS.map((name) => <span class="swatch"><i style={{ background: `var(--${name})` }} />{name}</span>)}</Samples>
      </Section>
      <Section title="Type">
        <p class="figure">412<small>ms</small></p>
        <p class="first">A sentence, or the title of a page. <b>Its end.</b></p>
        <p>Body. <span class="soft">Secondary.</span> <span class="quiet">Quiet.</span> <span class="small">Small.</span> <code>an-id</code></p>
      </Section>
      <Section title="Icons"><Samples><span class="brand"><Mark /></span>{ICONS.map((name) => <span title={name}><Icon name={name} /></span>)}</Samples></Section>
    </>
  );
}

function Controls() {
  return (
    <>
      <Section title="Buttons">
        <Samples>
          <button type="button" class="button">Plain</button><button type="button" class="button primary">Primary</button><button type="button" class="button danger">Danger</button>
          <button type="button" class="button" disabled>Disabled</button><button type="button" class="link" disabled>Off</button><button type="button" class="button square" aria-label="Pause"><Icon name="pause" /></button>
          <CopyButton label="Copy as curl" text={() => "curl"} /><CopyButton plain label="Copy" text={() => "text"} /><kbd>Ctrl K</kbd>
        </Samples>
      </Section>
      <Section title="Choices and fields">
        <Samples>
          <span class="segmented"><button type="button" aria-pressed="true">chosen</button><button type="button" aria-pressed="false">other</button></span>
          <label class="field"><Icon name="search" /><input aria-label="Empty field" placeholder="A user" /></label>
          <label class="field"><input aria-label="Full field" value="bob" readOnly /></label>
          <label class="choice"><input type="checkbox" defaultChecked /> A choice</label>
        </Samples>
        <p class="outcome"><span class="grow">One connection was closed.</span><button type="button" class="link">Dismiss</button></p>
      </Section>
      <Section title="Chips, dots, nodes">
        <Samples>
          <span class="chip">plain</span><span class="chip tide">ready</span><span class="chip amber">draining</span><span class="chip red">lapsed</span>
          <span class="row"><i class="dot" />live</span><span class="row"><i class="dot amber" />under way</span><span class="row"><i class="dot red" />broken</span><span class="row"><i class="dot off" />off</span>
          {[...NODES, "n9"].map((name) => <span class={nodeClass(name)}><span class="node">{name}</span></span>)}<span class="quiet small">n9 is gone</span><span class="count-badge">2</span>
        </Samples>
      </Section>
    </>
  );
}

function States() {
  return (
    <>
      <Section title="Loading"><div class="progress" role="progressbar" aria-label="Loading" /><p class="figure">–</p></Section>
      <Section title="Empty"><Empty command="tidegate tail --user bob">No event yet. A person who connects makes one:</Empty></Section>
      <Section title="A command"><Command text="curl 'http://127.0.0.1:7801/v1/nodes'" /></Section>
      <Section title="A failed request"><Failed error={REFUSED} again={nothing} /></Section>
      <Section title="No answer, and a newer node">
        <div class="banner">n1 does not answer. What you see is from 14:22:07. Trying again.</div>
        <div class="banner amber row"><span class="grow">This page is older than the node (0.1.0, 0.2.0).</span><button type="button" class="link">Reload</button></div>
      </Section>
      <Section title="A part is missing"><p class="note part">n3 did not report. These are the counts of 2 of 3 nodes.</p></Section>
    </>
  );
}

function Judged({ label, value, state, note }: { readonly label: string; readonly value: number; readonly state: string; readonly note: ComponentChildren }) {
  return <div class={`count judged ${state}`}><span class="label">{label}</span><span class="row"><span class="figure">{value}</span>{note}</span></div>;
}

function Parts() {
  return (
    <>
      <Section title="Verdict">
        {([["", "All is well."], ["amber", "n2 drains. Nothing needs you."], ["red", "Two partitions have no owner."]] as const).map(([tone, words]) => <p class="row first"><i class={`dot ${tone}`} />{words}</p>)}
      </Section>
      <Section title="Figures and lines">
        <Samples>
          <div class="count"><span class="label">Accepted</span><span class="figure">1,204<small>/s</small></span></div>
          <Sparkline values={LINE} label="Accepted" /><Sparkline values={[0, 0]} label="None" /><Sparkline values={[]} label="Not known" />
          <Judged label="Lost" value={0} state="" note={<span class="quiet">so far</span>} /><Judged label="Lost" value={0} state="good" note={<Icon name="tick" />} /><Judged label="Lost" value={1} state="broken" note={<code>never-got</code>} />
        </Samples>
      </Section>
      <Section title="Sentence"><p class="first">Bob’s link was cut for 3.2 s. Bob’s client came back, and fetched 411 and 412. <b>{GOOD}</b></p></Section>
      <Section title="Breaks">
        <div class="tiles">
          {([["", "Cut the link", "the socket just dies"], ["on red", "Cut the link", "for 1.2 s"], ["on amber", "Freeze", "for 4 s"], ["blocked", "Kill n1", "only in a cluster"]] as const).map(([state, name, note]) => (
            <button type="button" class={`tile ${state}`} aria-disabled={state === "blocked"}><Icon name="cut" /><b>{name}</b><span class="key">1</span><span class="tile-note">{note}</span></button>
          ))}
        </div>
      </Section>
      <Section title="Chat">
        <ol class="bubbles">
          <li class="bubble"><p>Ferry is on time, pier 4.</p><span class="ticks num">410</span></li>
          {([["", "sent", undefined], ["", "411", "tick"], ["", "412", "ticks"], ["read", "413", "ticks"]] as const).map(([state, words, icon]) => <li class="bubble own"><p>Good.</p><span class={`ticks ${state}`}>{words}{icon && <Icon name={icon} />}</span></li>)}
          <li class="bubble own refused"><p>Too late.</p><span class="ticks refused"><Icon name="cross" />refused</span></li>
          <li class="remark red"><span>Link cut. 411 and 412 fetched.</span></li>
        </ol>
        <ul class="seats">{([["has calm", "calm"], ["has", "has it"], ["waits", "waits"], ["away", "away"]] as const).map(([state, words]) => <li class={`seat ${state}`}><i />{words}</li>)}</ul>
      </Section>
      <Section title="Events"><ol>{EVENTS.map((it) => <li class="event-row"><EventLine it={it} /></li>)}</ol></Section>
      <Section title="Waterfall">{SENT && <WaterfallView falls={arrange(SENT)} silent={["n3"]} />}</Section>
    </>
  );
}

/** The parts that the views draw from figures: each in all its states at once. */
function Charts() {
  const [river, groups, wire] = useMemo(() => [sampleRiver(), samplePartitions(), sampleWire()] as const, []);
  return (
    <>
      <Section title="Partitions"><Grid list={groups} partitions={14} isBrief={false} byNumber={false} /></Section>
      <Section title="Partitions, small"><Grid list={groups} partitions={14} isBrief byNumber={false} /></Section>
      <Section title="River"><RiverPicture it={river} isOpen /></Section>
      <Section title="River, while nothing happens"><RiverPicture it={{ ...river, phases: [], from: river.from, to: river.from + 49, span: 50 }} isOpen={false} /></Section>
      <Section title="Wire"><WireView stage={wire} /></Section>
    </>
  );
}

/** Every part of the page in its states, in both themes; on nodes for development only. */
export default function StyleGuide() {
  // The samples have nodes that need not exist; their colours are those of three nodes as long as the guide is shown.
  useLayoutEffect(() => {
    const before = nodeNames.value;
    nodeNames.value = NODES;
    return () => void (nodeNames.value = before);
  }, []);
  return (
    <>
      <Header title="Style guide"><span class="quiet lead-note">every part in its states, in both themes</span></Header>
      <div class="view">
        <div class="guide">
          {(["light", "dark"] as const).map((theme) => (
            <div data-theme={theme} aria-label={theme} role="group"><Foundations /><Controls /><States /><Parts /><Charts /></div>
          ))}
        </div>
      </div>
    </>
  );
}
