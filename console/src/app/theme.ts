import { effect, signal } from "@preact/signals";

const KEY = "tidegate.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

function chosen(): string | null {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

/** Whether the page is dark: the choice of the person, or else that of the system. */
export const dark = signal(chosen() ? chosen() === "dark" : system.matches);

/** Changes between light and dark, and keeps the choice. */
export function toggleTheme(): void {
  dark.value = !dark.value;
  try {
    localStorage.setItem(KEY, dark.value ? "dark" : "light");
  } catch {
    // Without storage the choice lasts as long as the page.
  }
}

/** Applies the theme to the document. */
export function startTheme(): void {
  system.addEventListener("change", () => {
    if (!chosen()) dark.value = system.matches;
  });
  effect(() => {
    document.documentElement.dataset.theme = dark.value ? "dark" : "light";
  });
}
