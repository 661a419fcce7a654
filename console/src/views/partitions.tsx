import { computed, signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { query, setQuery } from "../app/router.ts";
import { cells, heightOf, hold, shrink, step, type Cell, type Holding } from "../charts/partitions.ts";
import { secondClass } from "../charts/hues.ts";
import { nodeClass, nodeHue } from "../live/boot.ts";
import { nodes, type Nodes } from "../live/nodes.ts";
import { grouped, plural } from "../words/numbers.ts";
import { cellWords, ownerWords } from "../words/partitions.ts";

/** Partitions from which cells are small. */
const SMALL = 256;

let held: ReadonlyMap<number, Holding> = new Map();

/** The cells of all partitions by number; what changes hands is known from the answers before. */
const all = computed<readonly Cell[]>(() => {
  const it = nodes.value;
  if (!it) return [];
  const owners = live(it);
  held = hold(held, owners, it.partitions, performance.now());
  return cells(held, owners, it.archiveBehind);
});

function live(it: Nodes) {
  return it.nodes.filter((node) => node.lease === "live");
}

/** The cell under the pointer or with the focus. */
const shown = signal<Cell | undefined>(undefined);

/** Cells that stand together: those of an owner, or all. */
export interface Group {
  readonly name: string;
  readonly count: number;
  readonly cells: readonly Cell[];
}

function groups(it: Nodes, byNumber: boolean): Group[] {
  const list = all.value;
  if (byNumber) return [{ name: "all", count: list.length, cells: shrink(list, list.length) }];
  const owners = [...live(it).map((node) => node.node), ""];
  return owners
    .map((name) => ({ name, own: list.filter((cell) => cell.owner === name) }))
    .filter(({ name, own }) => name !== "" || own.length > 0)
    .map(({ name, own }) => ({ name, count: own.length, cells: shrink(own, list.length) }));
}

/** The partitions of the log, grouped by owner or by number; the height above a cell is what waits to be archived. */
export function Partitions({ it, isBrief = false }: { readonly it: Nodes; readonly isBrief?: boolean }) {
  const byNumber = !isBrief && query.value.get("partitions") === "number";
  const list = groups(it, byNumber);
  const orphans = all.value.filter((cell) => cell.state === "orphan").length;
  const size = Math.ceil(it.partitions / 1024);
  return (
    <section class="partitions">
      <div class="row">
        <h2 class="grow">Partitions <span class="quiet small">{plural(it.partitions, "partition")} of the log, {orphans === 0 ? "all owned" : `${orphans} without an owner`}. Height is what waits to be archived.{size > 1 ? ` A cell is the worst of ${size}.` : ""}</span></h2>
        {!isBrief && it.partitions > 1 && live(it).length > 1 && (
          <span class="segmented">
            <button type="button" aria-pressed={!byNumber} onClick={() => setQuery("partitions", "")}>By owner</button>
            <button type="button" aria-pressed={byNumber} onClick={() => setQuery("partitions", "number")}>By number</button>
          </span>
        )}
      </div>
      <Grid list={list} partitions={it.partitions} isBrief={isBrief} byNumber={byNumber} />
      {!isBrief && <p class="quiet small partition-words">{shown.value ? cellWords(all.value.length > 1024 ? shown.value : (all.value[shown.value.first] ?? shown.value)) : "Point at a cell, or reach it by Tab and the arrow keys."}</p>}
    </section>
  );
}

/** Groups of cells, which arrow keys move through. */
export function Grid({ list, partitions, isBrief, byNumber }: { readonly list: readonly Group[]; readonly partitions: number; readonly isBrief: boolean; readonly byNumber: boolean }) {
  const box = useRef<HTMLDivElement>(null);
  const [[row, column], setAt] = useState<readonly [number, number]>([0, 0]);
  useEffect(() => () => { shown.value = undefined; }, []);
  const rows = list.map((group) => group.cells.length);
  const at: readonly [number, number] = rows[row] !== undefined && column < (rows[row] ?? 0) ? [row, column] : [Math.max(0, rows.findIndex((count) => count > 0)), 0];
  const onKeyDown = (event: KeyboardEvent) => {
    const next = step(rows, at[0], at[1], event.key);
    if (!next) return;
    event.preventDefault();
    setAt(next);
    box.current?.querySelectorAll<HTMLElement>(".owner")[next[0]]?.querySelectorAll<HTMLElement>(".cell")[next[1]]?.focus();
  };
  const kind = isBrief ? "brief" : partitions > SMALL ? "small" : "";
  return (
    <div ref={box} class={`owners ${kind} ${byNumber ? "numbers" : ""}`} role="grid" aria-label="Partitions" onKeyDown={onKeyDown} onPointerLeave={() => (shown.value = undefined)}>
      {list.map((group, index) => {
        const words = ownerWords(group.cells, group.count);
        return (
          <div class={`owner ${group.name === "all" ? "" : nodeClass(group.name)}`} role="row" key={group.name}>
            <div role="rowheader" class={byNumber ? "sr" : ""}>
              {group.name === "" ? <span class="waits">no owner</span> : group.name === "all" ? "All" : <span class="node">{group.name}</span>} <span class="quiet small">{words.text}</span>
              {words.worst && <span class={words.isRed ? "small worst waits" : "small worst"}> {words.worst}</span>}
            </div>
            <div class="cells" role="presentation">
              {group.cells.map((cell, place) => (
                <CellView key={cell.first} it={cell} height={isBrief ? 14 : kind === "small" ? 18 : 32} isNumbered={kind === "" && place % 3 === 0} isReached={at[0] === index && at[1] === place} onFocus={() => { setAt([index, place]); shown.value = cell; }} />
              ))}
            </div>
          </div>
        );
      })}
    </div>
  );
}

function CellView({ it, height, isNumbered, isReached, onFocus }: { readonly it: Cell; readonly height: number; readonly isNumbered: boolean; readonly isReached: boolean; readonly onFocus: () => void }) {
  const words = cellWords(it);
  const other = it.other && it.state !== "orphan" ? ` divided ${secondClass(nodeHue(it.other))}` : "";
  return (
    <div class={`cell ${it.state} ${it.owner ? nodeClass(it.owner) : ""}${other}`} role="gridcell" tabIndex={isReached ? 0 : -1} aria-label={words} title={words} onFocus={onFocus} onPointerEnter={() => (shown.value = it)}>
      <i class="wait" style={{ height: `${Math.round(heightOf(it.records) * height)}px` }} />
      <i class="base" />
      {isNumbered && <span class="num" aria-hidden="true">{grouped(it.first)}</span>}
    </div>
  );
}
