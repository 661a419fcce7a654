import { useState } from "preact/hooks";
import { Icon } from "./icon.tsx";

/** Copies a text; outside a secure context, where a page has no clipboard, it shows the text selected. */
export function CopyButton({ label, text, plain }: { readonly label: string; readonly text: () => string; readonly plain?: boolean }) {
  const [state, set] = useState<"" | "done" | "show">("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text());
      set("done");
      setTimeout(() => set(""), 1500);
    } catch {
      set("show");
    }
  };
  if (state === "show") return <textarea class="copy-text" readOnly aria-label={label} ref={(it) => it?.select()} onBlur={() => set("")}>{text()}</textarea>;
  return (
    <button type="button" class={plain ? "link" : "button"} onClick={() => void copy()}>
      {!plain && <Icon name={state === "done" ? "tick" : "copy"} />}
      {state === "done" ? "Copied" : label}
    </button>
  );
}
