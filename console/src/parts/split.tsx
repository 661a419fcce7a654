import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { isNarrow } from "../app/width.ts";
import { Icon } from "./icon.tsx";

/** Where a person was in a list when an entry of it was opened. */
interface Place {
  readonly entry: HTMLElement | null;
  readonly inBox: number;
  readonly inPage: number;
}

/**
 * A list beside its detail. In a narrow page the list stands alone until an entry is open; then the detail has its place, and
 * a link leads back to the entry. An empty list leaves the place to what `children` says about it.
 */
export function Split({ isOpen, isEmpty, back, label, side, children }: {
  readonly isOpen: boolean; readonly isEmpty: boolean; readonly back: string; readonly label: string;
  readonly side: ComponentChildren; readonly children: ComponentChildren;
}) {
  const box = useRef<HTMLDivElement>(null);
  const was = useRef(isOpen);
  const place = useRef<Place | undefined>(undefined);
  useLayoutEffect(() => {
    if (was.current === isOpen) return;
    was.current = isOpen;
    if (!isNarrow.value || !box.current) return;
    const { entry, inBox, inPage } = (!isOpen && place.current) || { entry: null, inBox: 0, inPage: 0 };
    // What had the focus is hidden now.
    const next = isOpen ? box.current.querySelector<HTMLElement>(".back") : entry;
    next?.focus({ preventScroll: true });
    box.current.scrollTop = inBox;
    scrollTo(0, inPage);
  }, [isOpen]);
  const remember = (event: Event) => {
    if (event.target instanceof Element) place.current = { entry: event.target.closest("button"), inBox: box.current?.scrollTop ?? 0, inPage: scrollY };
  };
  return (
    <div ref={box} class={`split${isOpen ? " opened" : isEmpty ? " empty-list" : ""}`}>
      <div class="side" onClickCapture={remember}>{side}</div>
      <div class="main">
        {isOpen && <a class="back" href={back}><Icon name="back" />{label}</a>}
        {children}
      </div>
    </div>
  );
}
