import { sparkPath } from "../charts/sparkpath.ts";

/** A line of recent values, from zero, 96 by 24 px, with gaps where there is none; its newest value stands in text next to it. */
export function Sparkline({ values, label, width = 96, height = 24, over = `${values.length} s` }: { readonly values: readonly (number | undefined)[]; readonly label: string; readonly width?: number; readonly height?: number; readonly over?: string }) {
  const known = values.filter((it) => it !== undefined);
  const top = Math.max(1, ...known);
  const path = sparkPath(values, top, width, height);
  const low = Math.min(...known, top);
  const range = known.length > 0 ? `${over}, from ${Math.round(low)} to ${Math.round(top)}` : "no figures yet";
  return (
    <svg class="sparkline" viewBox={`0 0 ${width} ${height}`} width={width} height={height} role="img" aria-label={`${label}, ${range}`} preserveAspectRatio="none">
      <title>{range}</title>
      <path d={path} />
    </svg>
  );
}
