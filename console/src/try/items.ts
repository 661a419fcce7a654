import type { Frame } from "./frames.ts";
import type { IconName } from "../parts/icon.tsx";

/** Tones of a band and of a mark. */
export type Tone = "red" | "amber";

/** A row of the wire. */
export type Item =
  | { readonly key: number; readonly at: number; readonly kind: "frame"; readonly person: number; readonly direction: "in" | "out"; readonly frame: Frame; readonly cid: string }
  | { readonly key: number; readonly at: number; readonly kind: "mark"; readonly person: number; readonly text: string; readonly tone: Tone; readonly icon?: IconName };

/** A stretch of rows in which a person's half of the wire is tinted. */
export interface Band {
  readonly person: number;
  readonly tone: Tone;
  /** Whether the link itself is gone, so that the lifeline stops. */
  readonly isGone: boolean;
  readonly from: number;
  to?: number;
}

/** How a band covers a row: where it begins and ends, so that its edges are drawn. */
export interface Cover {
  readonly tone: Tone;
  readonly isGone: boolean;
  readonly isFirst: boolean;
  readonly isLast: boolean;
}

/** Rows that the page keeps. */
const KEEP = 2000;

/** The rows of the wire and its bands. */
export class Wire {
  items: Item[] = [];
  bands: Band[] = [];
  private next = 1;

  /** Adds the frame of a person's link. */
  frame(at: number, person: number, direction: "in" | "out", frame: Frame, cid: string): void {
    this.add({ key: this.next++, at, kind: "frame", person, direction, frame, cid });
  }

  /** Adds a remark in a person's half. */
  mark(at: number, person: number, text: string, tone: Tone, icon?: IconName): void {
    this.add({ key: this.next++, at, kind: "mark", person, text, tone, ...(icon ? { icon } : {}) });
  }

  /** Begins a band with the next row. */
  begin(person: number, tone: Tone, isGone: boolean): Band {
    const band: Band = { person, tone, isGone, from: this.next };
    this.bands.push(band);
    return band;
  }

  /** Ends a band with the last row. */
  end(band: Band): void {
    band.to ??= Math.max(band.from, this.next - 1);
  }

  /** Returns how the newest band of a person covers a row. */
  cover(person: number, key: number): Cover | undefined {
    for (let index = this.bands.length - 1; index >= 0; index -= 1) {
      const band = this.bands[index];
      if (!band || band.person !== person || key < band.from || (band.to !== undefined && key > band.to)) continue;
      return { tone: band.tone, isGone: band.isGone, isFirst: key === band.from, isLast: key === band.to };
    }
    return undefined;
  }

  private add(item: Item): void {
    this.items.push(item);
    if (this.items.length > KEEP) this.items = this.items.slice(-KEEP);
  }
}
