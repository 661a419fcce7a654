import type { ComponentChildren } from "preact";
import { CopyButton } from "./copy.tsx";

/** A command with a button that copies it. */
export function Command({ text }: { readonly text: string }) {
  return (
    <span class="command">
      <code>{text}</code>
      <CopyButton plain label="Copy" text={() => text} />
    </span>
  );
}

/** A list without entries: what would be here, and the command that makes the first. */
export function Empty({ children, command }: { readonly children: ComponentChildren; readonly command?: string }) {
  return (
    <div class="empty">
      <p>{children}</p>
      {command && <Command text={command} />}
    </div>
  );
}
