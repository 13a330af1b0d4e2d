/** Cohorts that are no tree: circles, the larger the more members. */
import { hierarchy, pack } from "d3-hierarchy";
import type { TopologyCohort } from "../api/operations";
import type { DrawingProps } from "../pages/cohorts";
import { classOf, clipped, describe, signOf } from "./cohort-words";
import { Node } from "./node";

type Item = { cohort?: TopologyCohort; children?: Item[] };
const [WIDTH, HEIGHT] = [760, 480];

export function Clusters({ found, chosen, wanted, onChoose }: DrawingProps) {
  const top: Item = { children: found.cohorts.map((cohort) => ({ cohort })) };
  const laid = pack<Item>().size([WIDTH, HEIGHT]).padding(6)(hierarchy(top).sum((item) => Math.max(item.cohort?.num_members ?? 0, 0.5)));
  return (
    <>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="group" aria-label="Cohorts as circles">
        {laid.leaves().map(({ x, y, r, data }) => (
          <Node key={data.cohort!.id} x={x} y={y} label={describe(data.cohort!)} className={classOf(data.cohort!, chosen, wanted)} onChoose={() => onChoose(data.cohort!.id)}>
            <circle r={r} />
            {r > 18 && <text y={4} textAnchor="middle">{signOf(data.cohort!)}{clipped(data.cohort!.name ?? "erased", Math.floor(r / 4))}</text>}
          </Node>
        ))}
      </svg>
      <ul className="legend">
        <li>● a cohort; the larger, the more members</li>
        <li>▥ fenced, ↺ began again from clean cohorts</li>
      </ul>
    </>
  );
}
