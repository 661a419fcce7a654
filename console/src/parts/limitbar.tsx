/** How much of a limit is used: the tick at its end is the limit. */
export function LimitBar({ used, limit, isFull, label }: { readonly used: number; readonly limit: number; readonly isFull: boolean; readonly label: string }) {
  const part = limit === 0 ? 1 : Math.min(1, used / limit);
  return (
    <span class={isFull ? "limitbar full" : "limitbar"} role="img" aria-label={label}>
      <i class="bar" style={{ width: `${part * 100}%` }} />
    </span>
  );
}
