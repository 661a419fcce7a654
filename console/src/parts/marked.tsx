/** A text of the node with its code between backquotes drawn as code. */
export function Marked({ text }: { readonly text: string }) {
  const parts = text.split("`");
  // Without a partner, a backquote is what it is.
  if (parts.length % 2 === 0) return <>{text}</>;
  return <>{parts.map((part, index) => (index % 2 === 1 ? <code>{part}</code> : part))}</>;
}
