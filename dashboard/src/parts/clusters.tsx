/** Cohorts that are no tree: circles, the larger the more members. Very many are put together and open on demand. */
import { useState } from "react";
import { hierarchy, pack } from "d3-hierarchy";
import type { TopologyCohort } from "../api/operations";
import type { DrawingProps } from "../pages/cohorts";
import { counted } from "../words";
import { CohortLegend } from "./cohort-legend";
import { classOf, clipped, describe, isWanted, nameOfCohort, STATES, stateOf } from "./cohort-words";
import { Icon, IconAt } from "./icon";
import { Node } from "./node";

type Item = { cohort?: TopologyCohort; group?: TopologyCohort[]; children?: Item[] };
const [WIDTH, HEIGHT, MOST_SINGLE, GROUPS, MOST_RADIUS] = [760, 420, 150, 40, 110];

export function Clusters({ found, look, chosen, wanted, onChoose }: DrawingProps) {
  const [open, setOpen] = useState<ReadonlySet<string>>(new Set());
  const top: Item = { children: itemsOf(found.cohorts, open, wanted) };
  const laid = pack<Item>().size([WIDTH, HEIGHT]).padding(6)(hierarchy(top).sum((item) => weight(item)));
  return (
    <>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="group" aria-label="Cohorts as circles">
        {laid.leaves().map(({ x, y, r, data }) => ({ x, y, data, r: Math.min(r, MOST_RADIUS) })).map(({ x, y, r, data }) => data.group ? (
          <Node key={data.group[0].id} x={x} y={y} label={`${counted(data.group.length, "cohort")}, ${nameOfCohort(data.group[0])} to ${nameOfCohort(data.group.at(-1)!)}: open them`} className="group" onChoose={() => setOpen(new Set([data.group![0].id]))}>
            <circle r={r} />
            <text y={r > 30 ? -1 : 4} textAnchor="middle" className="name">{data.group.length}</text>
            {r > 30 && <text y={13} textAnchor="middle" className="small">{clipped(nameOfCohort(data.group[0]), Math.floor(r / 3.6))} …</text>}
          </Node>
        ) : (
          <Circle key={data.cohort!.id} x={x} y={y} r={r} cohort={data.cohort!} look={look} chosen={chosen} wanted={wanted} onChoose={onChoose} />
        ))}
      </svg>
      <CohortLegend found={found} look={look}>
        <li><Icon of="ring" /> a cohort; the larger, the more members</li>
        {found.cohorts.length > MOST_SINGLE && <li><span className="swatch-box group">25</span> so many cohorts; choose it to see them</li>}
      </CohortLegend>
    </>
  );
}

function Circle({ x, y, r, cohort, look, chosen, wanted, onChoose }: Omit<DrawingProps, "found"> & { x: number; y: number; r: number; cohort: TopologyCohort }) {
  const { icon } = STATES[stateOf(cohort, look)];
  const hasName = r > 22;
  return (
    <Node x={x} y={y} label={describe(cohort, look)} className={classOf(cohort, look, chosen, wanted)} onChoose={() => onChoose(cohort.id)}>
      <circle r={r} />
      {icon && r > 7 && <IconAt of={icon} x={0} y={hasName ? -12 : 0} size={Math.min(14, 1.3 * r)} />}
      {hasName && <text y={icon ? 8 : 4} textAnchor="middle" className="name">{clipped(nameOfCohort(cohort), Math.floor(r / 3.6))}</text>}
    </Node>
  );
}

function weight(item: Item): number {
  const all = item.group ?? (item.cohort ? [item.cohort] : []);
  return all.reduce((total, one) => total + Math.max(one.num_members, 0.5), 0);
}

function itemsOf(cohorts: TopologyCohort[], open: ReadonlySet<string>, wanted: string): Item[] {
  if (cohorts.length <= MOST_SINGLE) return cohorts.map((cohort) => ({ cohort }));
  const alone = (one: TopologyCohort) => one.fences.length > 0 || isWanted(one, wanted);
  const items: Item[] = cohorts.filter(alone).slice(0, MOST_SINGLE).map((cohort) => ({ cohort }));
  const rest = cohorts.filter((one) => !alone(one));
  const size = Math.ceil(rest.length / GROUPS);
  for (let first = 0; first < rest.length; first += size) {
    const group = rest.slice(first, first + size);
    if (open.has(group[0].id)) items.push(...group.map((cohort) => ({ cohort })));
    else items.push({ group });
  }
  return items;
}
