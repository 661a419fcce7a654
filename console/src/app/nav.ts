import type { IconName } from "../parts/icon.tsx";

/** An entry of the navigation. */
export interface Entry {
  readonly path: string;
  readonly label: string;
  readonly icon: IconName;
  readonly key: string;
  readonly group: "" | "Watch" | "Operate";
}

/** The views of the page. A view that does not work has no entry. */
export const ENTRIES: readonly Entry[] = [
  { path: "/try", label: "Try it", icon: "chat", key: "t", group: "" },
  { path: "/overview", label: "Overview", icon: "pulse", key: "o", group: "Watch" },
  { path: "/messages", label: "Messages", icon: "steps", key: "m", group: "Watch" },
  { path: "/events", label: "Events", icon: "lines", key: "e", group: "Watch" },
  { path: "/errors", label: "Errors", icon: "warning", key: "r", group: "Watch" },
  { path: "/nodes", label: "Nodes", icon: "server", key: "n", group: "Operate" },
  { path: "/connections", label: "Connections", icon: "link", key: "c", group: "Operate" },
  { path: "/people", label: "People", icon: "people", key: "p", group: "Operate" },
  { path: "/groups", label: "Groups and rooms", icon: "hash", key: "g", group: "Operate" },
  { path: "/webhooks", label: "Webhooks", icon: "send", key: "w", group: "Operate" },
  { path: "/guard", label: "Guard", icon: "shield", key: "u", group: "Operate" },
];

/** The entries that are shown: the try-out page exists on development nodes only. */
export function entries(development: boolean): readonly Entry[] {
  return development ? ENTRIES : ENTRIES.filter((entry) => entry.path !== "/try");
}
