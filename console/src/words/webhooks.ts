import type { Answered, Webhook } from "../live/webhooks.ts";
import { count, duration, grouped, joined, plural } from "./numbers.ts";

/** What the page says of all endpoints: whether events arrive. */
export function webhooksVerdict(all: readonly Webhook[]): { readonly tone: string; readonly sentence: string } {
  const broken = all.filter((it) => ["failing", "disabled", "unusable"].includes(it.state));
  const paused = all.filter((it) => it.state === "paused");
  if (all.length === 0) return { tone: "", sentence: "No endpoint gets events." };
  const names = (list: readonly Webhook[]) => joined(list.map((it) => it.id));
  if (broken.length > 0) return { tone: "red", sentence: `${names(broken)} ${broken.length === 1 ? "takes" : "take"} no events. They wait, and none is lost.` };
  if (paused.length > 0) return { tone: "amber", sentence: `${names(paused)} ${paused.length === 1 ? "is" : "are"} paused, so events wait.` };
  return { tone: "green", sentence: all.length === 1 ? "The endpoint takes its events." : `All ${count(all.length)} endpoints take their events.` };
}

/** How far behind an endpoint is. */
export function lagWords(it: Webhook): string {
  if (it.behind === undefined) return "–";
  if (it.behind === 0) return "nothing waits";
  return `${grouped(it.behind)} behind, ${duration(it.lagMs ?? 0)}`;
}

/** Color of a state. */
export function stateTone(state: string): string {
  if (["failing", "disabled", "unusable"].includes(state)) return "chip red";
  return state === "paused" ? "chip amber" : "chip";
}

/** What does not go its usual way. */
export function troubleWords(it: Webhook): string {
  const [parked, aside] = [it.parkedCount ?? 0, it.asideCount ?? 0];
  const words = [];
  if (parked > 0) words.push(`${plural(parked, "conversation")} sent apart`);
  if (aside > 0) words.push(`${plural(aside, "event")} set aside`);
  return words.join(", ");
}

/** What came back from an endpoint. */
export function answerWords(id: string, what: string, it: Answered): string {
  const status = it.status ? ` with status ${it.status}` : "";
  return it.taken ? `${id} has taken ${what}${status}.` : `${id} has not taken ${what}: ${it.error ?? "no answer"}.`;
}
