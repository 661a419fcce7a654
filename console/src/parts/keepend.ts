/** Keeps the end of a list in sight when its box changes its size, as long as `follows` says so. Returns how to end that. */
export function keepEnd(box: HTMLElement | null, follows: () => boolean = () => true): () => void {
  if (!box) return () => {};
  const watch = new ResizeObserver(() => {
    if (follows()) box.scrollTop = box.scrollHeight;
  });
  watch.observe(box);
  return () => watch.disconnect();
}
