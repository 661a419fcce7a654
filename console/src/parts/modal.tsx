import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

/** A dialog above the page while it is open; Escape ends it. */
export function Modal({ label, isOpen, close, children }: { readonly label: string; readonly isOpen: boolean; readonly close: () => void; readonly children: ComponentChildren }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (isOpen && !dialog.current?.open) dialog.current?.showModal();
    else if (!isOpen) dialog.current?.close();
  }, [isOpen]);
  return <dialog ref={dialog} aria-label={label} onClose={close}>{isOpen && children}</dialog>;
}
