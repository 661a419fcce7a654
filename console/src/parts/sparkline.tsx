/** A line of recent values, from zero, 96 by 24 px, with gaps where there is none; its newest value stands in text next to it. */
export function Sparkline({ values, label, width = 96, height = 24, over = `${values.length} s` }: { readonly values: readonly (number | undefined)[]; readonly label: string; readonly width?: number; readonly height?: number; readonly over?: string }) {
  const known = values.filter((it) => it !== undefined);
  const top = Math.max(1, ...known);
  const x = (index: number) => (values.length < 2 ? width : (index / (values.length - 1)) * width);
  const y = (value: number) => height - 1.5 - (value / top) * (height - 3);
  const path = values.map((value, index) => (value === undefined ? "" : `${index === 0 || values[index - 1] === undefined ? "M" : "L"}${x(index).toFixed(1)} ${y(value).toFixed(1)}`)).join("");
  const low = Math.min(...known, top);
  const range = known.length > 0 ? `${over}, from ${Math.round(low)} to ${Math.round(top)}` : "no figures yet";
  return (
    <svg class="sparkline" viewBox={`0 0 ${width} ${height}`} width={width} height={height} role="img" aria-label={`${label}, ${range}`} preserveAspectRatio="none">
      <title>{range}</title>
      <path d={path} />
    </svg>
  );
}
