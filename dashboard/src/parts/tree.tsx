/** The influence tree. Large trees are folded: fenced paths stay open, and each node opens on demand. */
import { useMemo, useState } from "react";
import { hierarchy, tree } from "d3-hierarchy";
import type { TopologyCohort } from "../api/operations";
import type { DrawingProps } from "../pages/cohorts";
import { classOf, clipped, describe, signOf } from "./cohort-words";
import { Node } from "./node";

const MOST_UNFOLDED = 120;
const [ROW, COLUMN, MARGIN] = [30, 190, 30];
type Item = { cohort: TopologyCohort | null; children: Item[]; size: number };

export function Tree({ found, chosen, wanted, onChoose }: DrawingProps) {
  const top = useMemo(() => itemsOf(found.cohorts), [found]);
  const [open, setOpen] = useState<ReadonlySet<string>>(() => unfolded(top, found.cohorts));
  const laid = tree<Item>().nodeSize([ROW, COLUMN])(hierarchy(top, (item) => (item.cohort === null || open.has(item.cohort.id) ? item.children : [])));
  const nodes = laid.descendants().filter((node) => node.data.cohort !== null);
  const shift = top.cohort === null ? COLUMN : 0;
  const lowest = Math.min(...nodes.map((node) => node.x));
  const height = Math.max(...nodes.map((node) => node.x)) - lowest + 2 * MARGIN;
  const width = Math.max(...nodes.map((node) => node.y)) - shift + 220 + MARGIN;
  const at = (node: { x: number; y: number }) => [node.y - shift + MARGIN, node.x - lowest + MARGIN] as const;
  const toggle = (id: string) => setOpen((before) => new Set(before.has(id) ? [...before].filter((one) => one !== id) : [...before, id]));
  return (
    <div className="drawing" tabIndex={0} role="region" aria-label="The influence tree">
      <svg viewBox={`0 0 ${width} ${height}`} role="group" aria-label="Cohorts as a tree" style={{ width, minWidth: width }}>
        {laid.links().filter(({ source }) => source.data.cohort !== null).map(({ source, target }) => {
          const [[x1, y1], [x2, y2]] = [at(source), at(target)];
          const isPath = source.data.cohort!.fences.length > 0 && target.data.cohort!.fences.length > 0;
          return <path key={target.data.cohort!.id} className={`edge ${isPath ? "fenced" : ""}`} d={`M${x1},${y1}C${(x1 + x2) / 2},${y1} ${(x1 + x2) / 2},${y2} ${x2},${y2}`} />;
        })}
        {nodes.map((node) => {
          const cohort = node.data.cohort!;
          const [x, y] = at(node);
          const folded = node.data.children.length > 0 && !open.has(cohort.id);
          return (
            <Node key={cohort.id} x={x} y={y} label={`${describe(cohort)}${folded ? `; ${node.data.size - 1} cohorts inside are folded` : ""}`} className={classOf(cohort, chosen, wanted)} onChoose={() => { onChoose(cohort.id); if (folded) toggle(cohort.id); }}>
              <circle r={8} />
              <text x={13} y={4} className="halo">{signOf(cohort)}{clipped(cohort.name ?? "erased")}{folded ? ` (+${node.data.size - 1})` : ""}</text>
            </Node>
          );
        })}
      </svg>
    </div>
  );
}

function itemsOf(cohorts: TopologyCohort[]): Item {
  const items = new Map(cohorts.map((cohort) => [cohort.id, { cohort, children: [], size: 1 } as Item]));
  const top: Item = { cohort: null, children: [], size: 1 };
  for (const item of items.values()) (items.get(item.cohort!.parent_id ?? "") ?? top).children.push(item);
  measured(top);
  return top.children.length === 1 ? top.children[0] : top;
}

function measured(item: Item): number {
  item.size = 1 + item.children.reduce((total, child) => total + measured(child), 0);
  return item.size;
}

function unfolded(top: Item, cohorts: TopologyCohort[]): ReadonlySet<string> {
  if (cohorts.length <= MOST_UNFOLDED) return new Set(cohorts.map((one) => one.id));
  const open = new Set<string>();
  let level: Item[] = [top];
  for (let shown = 1; level.length > 0; ) {
    const next = level.flatMap((item) => item.children);
    shown += next.length;
    if (shown > MOST_UNFOLDED) break;
    level.forEach((item) => item.cohort && open.add(item.cohort.id));
    level = next;
  }
  const parents = new Map(cohorts.map((one) => [one.id, one.parent_id]));
  for (const one of cohorts.filter((cohort) => cohort.fences.length > 0).slice(0, MOST_UNFOLDED))
    for (let parent = parents.get(one.id); parent; parent = parents.get(parent)) open.add(parent);
  return open;
}

