import { signal } from "@preact/signals";
import { boot } from "../live/boot.ts";
import { ENTRIES, entries } from "./nav.ts";
import { go } from "./router.ts";
import { toggleTheme } from "./theme.ts";

/** The dialog that is open, if any. */
export const dialog = signal<"" | "find" | "keys" | "commands">("");

/** Whether single letters act; a person can turn them off for the page. */
export const letters = signal(true);

/** Handlers of the view that is shown, by key; `Alt` and the key works in fields too if the key is a digit. */
export const viewKeys = new Map<string, () => void>();

/** Keys of all views, as the list of keys shows them. */
export const KEYS: readonly (readonly [string, string])[] = [
  ["Ctrl K", "find or jump"],
  [`g, then ${ENTRIES.map((entry) => entry.key).join(" ")}`, "open a view"],
  ["/", "filter the list"],
  ["1 – 8", "break something, on Try it; with Alt also in a field"],
  ["p", "pause the events, or the river"],
  ["d", "light or dark"],
  ["Esc", "close"],
  ["?", "this list"],
];

function inField(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.matches("input, textarea, select") || target.isContentEditable);
}

/** Listens to the keyboard. */
export function startKeys(): void {
  let afterG = -Infinity;
  addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      dialog.value = "find";
      return;
    }
    const digit = /^Digit([1-8])$/.exec(event.code)?.[1];
    if (event.altKey && digit) {
      event.preventDefault();
      viewKeys.get(digit)?.();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || inField(event.target) || dialog.value || !letters.value) return;
    if (event.timeStamp - afterG < 1200) {
      afterG = -Infinity;
      const entry = entries(boot.value?.development ?? false).find((it) => it.key === event.key);
      if (entry) go(entry.path);
      return;
    }
    if (event.key === "g") afterG = event.timeStamp;
    else if (event.key === "d") toggleTheme();
    else if (event.key === "?") dialog.value = "keys";
    else if (event.key === "/") {
      event.preventDefault();
      document.querySelector<HTMLInputElement>("[data-filter]")?.focus();
    } else viewKeys.get(event.key)?.();
  });
}
