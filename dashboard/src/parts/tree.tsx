/** The influence tree. Large trees are folded: fenced paths stay open, and each node opens on demand. */
import { useMemo, useState } from "react";
import { hierarchy, tree } from "d3-hierarchy";
import type { TopologyCohort } from "../api/operations";
import type { DrawingProps } from "../pages/cohorts";
import { count, share } from "../words";
import { CohortLegend } from "./cohort-legend";
import { classOf, clipped, describe, nameOfCohort, STATES, stateOf } from "./cohort-words";
import { IconAt } from "./icon";
import { Node } from "./node";

const MOST_UNFOLDED = 120;
const MOST_CHILDREN = 40;
const [BOX_WIDTH, BOX_HEIGHT, ROW, COLUMN, MARGIN] = [150, 38, 48, 196, 8];
type Item = { cohort: TopologyCohort | null; children: Item[]; size: number };

export function Tree({ found, look, chosen, wanted, onChoose }: DrawingProps) {
  const top = useMemo(() => itemsOf(found.cohorts), [found]);
  const [open, setOpen] = useState<ReadonlySet<string>>(() => unfolded(top, found.cohorts));
  const laid = tree<Item>().nodeSize([ROW, COLUMN])(hierarchy(top, (item) => (item.cohort === null || open.has(item.cohort.id) ? few(item.children) : [])));
  const nodes = laid.descendants().filter((node) => node.data.cohort !== null);
  const shift = top.cohort === null ? COLUMN : 0;
  const lowest = Math.min(...nodes.map((node) => node.x));
  const height = Math.max(...nodes.map((node) => node.x)) - lowest + BOX_HEIGHT + 2 * MARGIN;
  const width = Math.max(...nodes.map((node) => node.y)) - shift + BOX_WIDTH + 2 * MARGIN;
  const at = (node: { x: number; y: number }) => [node.y - shift + MARGIN, node.x - lowest + MARGIN + BOX_HEIGHT / 2] as const;
  const toggle = (id: string) => setOpen((before) => new Set(before.has(id) ? [...before].filter((one) => one !== id) : [...before, id]));
  return (
    <>
      <div className="drawing" tabIndex={0} role="region" aria-label="The influence tree">
        <svg viewBox={`0 0 ${width} ${height}`} role="group" aria-label="Cohorts as a tree" style={{ maxWidth: width, minWidth: Math.min(width, 640) }}>
          {laid.links().filter(({ source }) => source.data.cohort !== null).map(({ source, target }) => {
            const [[x1, y1], [x2, y2]] = [at(source), at(target)];
            const [from, to] = [stateOf(source.data.cohort!, look), stateOf(target.data.cohort!, look)];
            const isPath = from !== "untouched" && to !== "untouched";
            const [begin, middle] = [x1 + BOX_WIDTH, (x1 + BOX_WIDTH + x2) / 2];
            return <path key={target.data.cohort!.id} className={`edge ${isPath ? to : ""}`} d={`M${begin},${y1}C${middle},${y1} ${middle},${y2} ${x2},${y2}`} />;
          })}
          {nodes.map((node) => {
            const cohort = node.data.cohort!;
            const [x, y] = at(node);
            const hidden = node.data.size - 1 - (node.children ?? []).reduce((total, child) => total + child.data.size, 0);
            const { icon } = STATES[stateOf(cohort, look)];
            return (
              <Node key={cohort.id} x={x} y={y} label={`${describe(cohort, look)}${hidden ? `; ${count(hidden)} cohorts inside are folded` : ""}`} className={classOf(cohort, look, chosen, wanted)} onChoose={() => { onChoose(cohort.id); if (hidden && !open.has(cohort.id)) toggle(cohort.id); }}>
                <rect y={-BOX_HEIGHT / 2} width={BOX_WIDTH} height={BOX_HEIGHT} rx={7} />
                {icon && <IconAt of={icon} x={BOX_WIDTH - 15} y={0} />}
                <text x={10} y={-3} className="name">{clipped(nameOfCohort(cohort), icon ? 15 : 18)}</text>
                <text x={10} y={12} className="small">{hidden ? `+ ${count(hidden)} inside` : cohort.accuracy == null ? `epoch ${cohort.epoch}` : `epoch ${cohort.epoch}, ${share(cohort.accuracy)}`}</text>
              </Node>
            );
          })}
        </svg>
      </div>
      <CohortLegend found={found} look={look} />
    </>
  );
}

/** A node with very many parts shows the fenced and the first of them; the table has all. */
function few(items: Item[]): Item[] {
  if (items.length <= MOST_CHILDREN) return items;
  const fenced = items.filter((item) => item.cohort!.fences.length > 0).slice(0, MOST_CHILDREN);
  return [...fenced, ...items.filter((item) => item.cohort!.fences.length === 0).slice(0, MOST_CHILDREN - fenced.length)];
}

function itemsOf(cohorts: TopologyCohort[]): Item {
  const items = new Map(cohorts.map((cohort) => [cohort.id, { cohort, children: [], size: 1 } as Item]));
  const top: Item = { cohort: null, children: [], size: 1 };
  for (const item of items.values()) (items.get(item.cohort!.parent_id ?? "") ?? top).children.push(item);
  for (const item of [top, ...items.values()]) item.children.sort((a, b) => nameOfCohort(a.cohort!).localeCompare(nameOfCohort(b.cohort!), undefined, { numeric: true }));
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
    const next = level.flatMap((item) => few(item.children));
    shown += next.length;
    if (shown > MOST_UNFOLDED / 4 && open.size > 0) break;
    level.forEach((item) => item.cohort && open.add(item.cohort.id));
    level = next;
  }
  const parents = new Map(cohorts.map((one) => [one.id, one.parent_id]));
  for (const one of cohorts.filter((cohort) => cohort.fences.length > 0).slice(0, MOST_UNFOLDED / 4))
    for (let parent = parents.get(one.id); parent; parent = parents.get(parent)) open.add(parent);
  return open;
}
