/** KNOT's plane: how long a round takes against how far updates point away from the others'. */
import type { DrawingProps } from "../pages/cohorts";
import { counted, figure, seconds } from "../words";
import { CohortLegend } from "./cohort-legend";
import { classOf, clipped, describe, nameOfCohort, STATES, stateOf } from "./cohort-words";
import { Icon, IconAt } from "./icon";
import { Node } from "./node";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [760, 400, 78, 120, 34, 52];
const STEPS = [0, 0.25, 0.5, 0.75, 1];

export function Plane({ found, look, chosen, wanted, onChoose }: DrawingProps) {
  const placed = found.cohorts.filter((one) => one.place !== null);
  const anchors = found.plane?.anchors ?? [];
  const x = scaleOf([...placed.map((one) => one.place!.time), ...anchors.map((one) => one.time)], LEFT + 30, WIDTH - RIGHT);
  const y = scaleOf([...placed.map((one) => one.place!.disparity), ...anchors.map((one) => one.disparity)], HEIGHT - BOTTOM - 30, TOP);
  const most = Math.max(...placed.map((one) => one.num_members), 1);
  const radius = (members: number) => 12 + 14 * Math.sqrt(members / most);
  const floor = HEIGHT - BOTTOM;
  return (
    <>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="group" aria-label="Clusters by time and disparity">
        {STEPS.map((step) => {
          const [time, disparity] = [x.valueAt(step), y.valueAt(step)];
          return (
            <g key={step}>
              <line className="grid-line" x1={x(time)} y1={TOP - 20} x2={x(time)} y2={floor} />
              <line className="grid-line" x1={LEFT} y1={y(disparity)} x2={WIDTH - 20} y2={y(disparity)} />
              {(step === 0 || x.isWide) && <text x={x(time)} y={floor + 16} textAnchor="middle" className="small">{seconds(time)}</text>}
              {(step === 0 || y.isWide) && <text x={LEFT - 8} y={y(disparity) + 4} textAnchor="end" className="small">{figure(disparity)}</text>}
            </g>
          );
        })}
        <line className="axis" x1={LEFT} y1={floor} x2={WIDTH - 20} y2={floor} />
        <line className="axis" x1={LEFT} y1={TOP - 20} x2={LEFT} y2={floor} />
        <text x={(LEFT + WIDTH - 20) / 2} y={HEIGHT - 10} textAnchor="middle" className="name">how long a round takes</text>
        <text transform={`translate(16,${HEIGHT / 2 - 20}) rotate(-90)`} textAnchor="middle" className="name">disparity of updates</text>
        {placed.map((one) => {
          const r = radius(one.num_members);
          const { icon } = STATES[stateOf(one, look)];
          return (
            <Node key={one.id} x={x(one.place!.time)} y={y(one.place!.disparity)} label={`${describe(one, look)}; ${seconds(one.place!.time)} a round, disparity ${figure(one.place!.disparity)}`} className={classOf(one, look, chosen, wanted)} onChoose={() => onChoose(one.id)}>
              <circle r={r} />
              <text x={r + 7} y={-1} className="name halo">{clipped(nameOfCohort(one))}</text>
              <text x={r + 7} y={13} className="small halo">{counted(one.num_members, "member")}</text>
              {icon && <IconAt of={icon} x={0} y={0} />}
            </Node>
          );
        })}
        {anchors.map((one) => (
          <rect key={one.cluster} className="anchor-mark" x={-4} y={-4} width={8} height={8} transform={`translate(${x(one.time)},${y(one.disparity) + 30}) rotate(45)`} />
        ))}
      </svg>
      <CohortLegend found={{ ...found, cohorts: placed }} look={look}>
        <li><Icon of="ring" /> a cluster; the larger, the more members</li>
        {anchors.length > 0 && <li><Icon of="diamond" /> below it: made around an anchor here</li>}
      </CohortLegend>
    </>
  );
}

function scaleOf(values: number[], from: number, to: number) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const place = (value: number) => (high === low ? (from + to) / 2 : from + ((to - from) * (value - low)) / (high - low));
  return Object.assign(place, { isWide: high > low, valueAt: (step: number) => low + step * (high - low) });
}
