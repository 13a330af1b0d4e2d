/** KNOT's plane: how long a round takes against how far updates point away from the others'. */
import type { DrawingProps } from "../pages/cohorts";
import { figure } from "../words";
import { classOf, clipped, describe, signOf } from "./cohort-words";
import { Node } from "./node";

const [WIDTH, HEIGHT, LEFT, BOTTOM, MARGIN] = [760, 460, 60, 46, 30];

export function Plane({ found, chosen, wanted, onChoose }: DrawingProps) {
  const placed = found.cohorts.filter((one) => one.place !== null);
  const anchors = found.plane?.anchors ?? [];
  const x = scaleOf([...placed.map((one) => one.place!.time), ...anchors.map((one) => one.time)], LEFT, WIDTH - MARGIN - 90);
  const y = scaleOf([...placed.map((one) => one.place!.disparity), ...anchors.map((one) => one.disparity)], HEIGHT - BOTTOM, MARGIN);
  const most = Math.max(...placed.map((one) => one.num_members), 1);
  return (
    <>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="group" aria-label="Clusters by time and disparity">
        <line className="axis" x1={LEFT - 20} y1={HEIGHT - BOTTOM + 16} x2={WIDTH - MARGIN} y2={HEIGHT - BOTTOM + 16} />
        <line className="axis" x1={LEFT - 20} y1={MARGIN - 10} x2={LEFT - 20} y2={HEIGHT - BOTTOM + 16} />
        <text x={(LEFT + WIDTH) / 2} y={HEIGHT - 8} textAnchor="middle">seconds of a round →</text>
        <text transform={`translate(16,${HEIGHT / 2}) rotate(-90)`} textAnchor="middle">disparity →</text>
        {anchors.map((one) => (
          <g key={one.cluster} className="node anchor" transform={`translate(${x(one.time)},${y(one.disparity)})`}>
            <rect x={-6} y={-6} width={12} height={12} transform="rotate(45)" />
          </g>
        ))}
        {placed.map((one) => (
          <Node key={one.id} x={x(one.place!.time)} y={y(one.place!.disparity)} label={`${describe(one)}; ${figure(one.place!.time)} s, disparity ${figure(one.place!.disparity)}`} className={classOf(one, chosen, wanted)} onChoose={() => onChoose(one.id)}>
            <circle r={8 + 14 * Math.sqrt(one.num_members / most)} fillOpacity={0.7} />
            <text y={4} x={12 + 14 * Math.sqrt(one.num_members / most)}>{signOf(one)}{clipped(one.name ?? "erased")}</text>
          </Node>
        ))}
      </svg>
      <ul className="legend">
        <li>● a cluster; the larger, the more members</li>
        <li>◆ the anchor that a cluster was made around</li>
        <li>▥ fenced, ↺ began again from clean cohorts</li>
      </ul>
    </>
  );
}

function scaleOf(values: number[], from: number, to: number): (value: number) => number {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return (value) => (high === low ? (from + to) / 2 : from + ((to - from) * (value - low)) / (high - low));
}
