import type { CloudEvent } from "../live/cloudevents.ts";

/** A person as the events of the node show it. */
export interface Known {
  readonly user: string;
  /** Devices that came and have not gone, as far as the events go back. */
  readonly devices: readonly string[];
}

/** People that the events name, those that are online first. `events` has the newest first. */
export function known(events: readonly CloudEvent[]): Known[] {
  const by = new Map<string, Map<string, boolean>>();
  for (const it of events) {
    // Its subject is a caller of the admin API.
    if (it.type === "tidegate.audit") continue;
    const devices = by.get(it.subject) ?? new Map<string, boolean>();
    by.set(it.subject, devices);
    const device = typeof it.data["device"] === "string" ? it.data["device"] : "";
    const isPresence = it.type === "tidegate.online" || it.type === "tidegate.offline";
    if (device && isPresence && !devices.has(device)) devices.set(device, it.type === "tidegate.online");
  }
  const all = [...by].map(([user, devices]) => ({ user, devices: [...devices].filter(([, isOn]) => isOn).map(([device]) => device) }));
  return all.sort((a, b) => Number(b.devices.length > 0) - Number(a.devices.length > 0) || a.user.localeCompare(b.user));
}
