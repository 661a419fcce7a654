/** Path of a line of values from zero, with gaps where there is none; a value between two gaps is a dot. */
export function sparkPath(values: readonly (number | undefined)[], top: number, width: number, height: number): string {
  const x = (index: number) => (values.length < 2 ? width : (index / (values.length - 1)) * width).toFixed(1);
  const y = (value: number) => (height - 1.5 - (value / top) * (height - 3)).toFixed(1);
  return values.map((value, index) => {
    if (value === undefined) return "";
    const isStart = values[index - 1] === undefined;
    return `${isStart ? "M" : "L"}${x(index)} ${y(value)}${isStart && values[index + 1] === undefined ? "h0" : ""}`;
  }).join("");
}

/** Values of which zero means that nothing was measured: such a second is a gap. */
export function measured(values: readonly (number | undefined)[]): (number | undefined)[] {
  return values.map((it) => it || undefined);
}
