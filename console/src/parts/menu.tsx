import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { Icon } from "./icon.tsx";

/** A button that opens further actions above the page; Escape and a click elsewhere close them. */
export function Menu({ label, children }: { readonly label: string; readonly children: ComponentChildren }) {
  const button = useRef<HTMLButtonElement>(null);
  const list = useRef<HTMLDivElement>(null);
  const [isOpen, setOpen] = useState(false);
  const place = () => {
    const at = button.current?.getBoundingClientRect();
    const it = list.current;
    if (!at || !it) return;
    const high = it.offsetHeight;
    const top = at.bottom + 4 + high > innerHeight ? at.top - 4 - high : at.bottom + 4;
    it.style.top = `${Math.max(8, top)}px`;
    it.style.right = `${Math.max(8, document.documentElement.clientWidth - at.right)}px`;
  };
  useLayoutEffect(() => {
    if (!isOpen) return;
    place();
    list.current?.querySelector<HTMLElement>("button, a")?.focus();
  }, [isOpen]);
  const step = (event: KeyboardEvent) => {
    const way = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    const all = [...(list.current?.querySelectorAll<HTMLElement>("button, a") ?? [])];
    if (way === 0 || all.length === 0) return;
    event.preventDefault();
    const from = all.indexOf(document.activeElement as HTMLElement);
    all[(from + way + all.length) % all.length]?.focus();
  };
  return (
    <span class="menu">
      <button ref={button} type="button" class="button square plain" aria-label={label} title={label} aria-expanded={isOpen} onClick={() => list.current?.togglePopover()}>
        <Icon name="more" />
      </button>
      <div
        ref={list}
        popover="auto"
        class="menu-list"
        onKeyDown={step}
        onToggle={(event) => setOpen((event as unknown as ToggleEvent).newState === "open")}
        onClick={(event) => event.target instanceof HTMLElement && event.target.closest("[data-ends]") && list.current?.hidePopover()}
      >
        {isOpen && children}
      </div>
    </span>
  );
}
