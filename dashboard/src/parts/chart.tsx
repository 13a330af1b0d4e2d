/** Curves with the fences of erasures drawn on them. Lines differ by dash as well as by colour. */
import { useEffect, useRef, type ReactNode } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useTheme, type Theme } from "../theme";
import { figure, moment } from "../words";
import { Picture } from "./table";

export type Line = { name: string; points: [x: number, y: number][] };
export type Mark = { x: number; label: string };
type Props = { label: string; unit: string; over: "time" | "round"; lines: Line[]; marks: Mark[] };

const COLOURS: Record<Theme, string[]> = {
  light: ["#0a58b5", "#b35900", "#116329", "#8e2f9e", "#a40e26", "#00707a", "#5b5b00", "#5f4bb6"],
  dark: ["#7db7ff", "#ffb26b", "#6fdd8b", "#e59cf2", "#ff9a94", "#5fd9e3", "#d8d860", "#b3a5ff"],
};
const DASHES: number[][] = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 5], [14, 4], [3, 6], [8, 2, 2, 2, 2, 2]];
export const MOST_LINES = 16;
const HEIGHT = 280;

export function Chart({ label, unit, over, lines, marks }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const theme = useTheme();
  const shown = lines.slice(0, MOST_LINES);
  useEffect(() => {
    const at = place.current;
    if (at === null || shown.length === 0) return;
    const plot = new uPlot(optionsOf(at.clientWidth, unit, over, shown, marks, theme), aligned(shown), at);
    const resized = new ResizeObserver(() => plot.setSize({ width: at.clientWidth, height: HEIGHT }));
    resized.observe(at);
    return () => {
      resized.disconnect();
      plot.destroy();
    };
  });
  const at = (x: number) => (over === "time" ? moment(new Date(1000 * x).toISOString()) : figure(x));
  const rows: ReactNode[][] = lines.flatMap((line) => line.points.map(([x, y]) => [line.name, at(x), figure(y)]));
  const fences = marks.map((mark): ReactNode[] => [`fence: ${mark.label}`, at(mark.x), "–"]);
  return (
    <Picture label={label} head={["Line", over === "time" ? "When" : "Round", unit || "value"]} rows={[...fences, ...rows]}>
      <div className="chart" ref={place} role="img" aria-label={`${label}: ${shown.map(summary).join("; ")}`} />
      <ul className="legend">
        {shown.map((line, i) => (
          <li key={line.name}>
            <svg viewBox="0 0 32 10" aria-hidden="true">
              <line x1="0" y1="5" x2="32" y2="5" stroke={colour(i, theme)} strokeWidth="3" strokeDasharray={DASHES[i % 8].join(" ")} />
            </svg>
            {line.name}
          </li>
        ))}
        {marks.length > 0 && (
          <li>
            <svg viewBox="0 0 32 10" aria-hidden="true">
              <line x1="16" y1="0" x2="16" y2="10" stroke={fenceColour()} strokeWidth="4" />
            </svg>
            a fence: the model begins again without the data
          </li>
        )}
        {lines.length > MOST_LINES && <li>and {lines.length - MOST_LINES} more in the table</li>}
      </ul>
    </Picture>
  );
}

function summary(line: Line): string {
  const [first, last] = [line.points[0], line.points.at(-1)];
  return first && last ? `${line.name} from ${figure(first[1])} to ${figure(last[1])}` : line.name;
}

const colour = (i: number, theme: Theme) => COLOURS[theme][i % 8];
const variable = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const fenceColour = () => variable("--fence");

function aligned(lines: Line[]): uPlot.AlignedData {
  const xs = [...new Set(lines.flatMap((line) => line.points.map(([x]) => x)))].sort((a, b) => a - b);
  const places = new Map(xs.map((x, i) => [x, i]));
  const columns = lines.map((line) => {
    const ys = new Array<number | null>(xs.length).fill(null);
    for (const [x, y] of line.points) ys[places.get(x)!] = y;
    return ys;
  });
  return [xs, ...columns];
}

function optionsOf(width: number, unit: string, over: Props["over"], lines: Line[], marks: Mark[], theme: Theme): uPlot.Options {
  const axis = { stroke: variable("--quiet"), grid: { stroke: variable("--line"), width: 1 }, ticks: { stroke: variable("--line") } };
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { points: { size: 8 } },
    scales: { x: { time: over === "time" } },
    axes: [{ ...axis, label: over === "time" ? "time" : "round", labelSize: 20 }, { ...axis, label: unit, labelSize: 20, size: 60 }],
    series: [{}, ...lines.map((line, i) => ({
      label: line.name, stroke: colour(i, theme), dash: DASHES[i % 8], width: 2, spanGaps: true,
      points: { show: line.points.length < 40, size: 5 },
    }))],
    hooks: { draw: [(plot) => drawFences(plot, marks)] },
  };
}

function drawFences(plot: uPlot, marks: Mark[]): void {
  const { ctx, bbox } = plot;
  const scale = devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = fenceColour();
  ctx.fillStyle = fenceColour();
  ctx.lineWidth = 3 * scale;
  ctx.font = `${12 * scale}px system-ui`;
  for (const { x, label } of marks) {
    const at = plot.valToPos(x, "x", true);
    if (at < bbox.left || at > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(at, bbox.top);
    ctx.lineTo(at, bbox.top + bbox.height);
    ctx.stroke();
    const isAtRight = at > bbox.left + 0.8 * bbox.width;
    ctx.textAlign = isAtRight ? "right" : "left";
    ctx.fillText(`▥ ${label}`, at + (isAtRight ? -6 : 6) * scale, bbox.top + 14 * scale);
  }
  ctx.restore();
}
