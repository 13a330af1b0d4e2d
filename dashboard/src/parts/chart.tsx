/** Curves with the fences of erasures drawn on them. Lines differ by dash as well as by colour. */
import { useEffect, useRef, type ReactNode } from "react";
import { Link } from "@tanstack/react-router";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useTheme, type Theme } from "../theme";
import { bytes, figure, moment, seconds, share } from "../words";
import { Picture } from "./table";

/** A point without a value is a gap: what comes after it does not go on from what was before. */
export type Line = { name: string; points: [x: number, y: number | null][] };
export type Mark = { x: number; label: string; request: string };
type Over = "time" | "round" | "period";
/** `isFirst`: of several under each other; only it says in words what they have in common. */
type Props = { label: string; unit: string; over: Over; lines: Line[]; marks: Mark[]; isFirst?: boolean };

const COLOURS: Record<Theme, string[]> = {
  light: ["#0a58b5", "#b35900", "#116329", "#8e2f9e", "#a40e26", "#00707a", "#5b5b00", "#5f4bb6"],
  dark: ["#7db7ff", "#ffb26b", "#6fdd8b", "#e59cf2", "#ff9a94", "#5fd9e3", "#d8d860", "#b3a5ff"],
};
const DASHES: number[][] = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 5], [14, 4], [3, 6], [8, 2, 2, 2, 2, 2]];
export const MOST_LINES = 16;
const MOST_MARKS = 6;
const HEIGHT = 260;
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000];
const TIMES: (string | number | null)[][] = [
  [31_536_000, "{YYYY}", null, null, null, null, null, null, 1],
  [2_419_200, "{MMM}", "\n{YYYY}", null, null, null, null, null, 1],
  [86_400, "{D} {MMM}", "\n{YYYY}", null, null, null, null, null, 1],
  [60, "{HH}:{mm}", "\n{D} {MMM} {YYYY}", null, "\n{D} {MMM}", null, null, null, 1],
  [1, "{HH}:{mm}:{ss}", "\n{D} {MMM} {YYYY}", null, "\n{D} {MMM}", null, null, null, 1],
  [0.001, ":{ss}.{fff}", "\n{D} {MMM} {YYYY} {HH}:{mm}", null, "\n{D} {MMM} {HH}:{mm}", null, "\n{HH}:{mm}", null, 1],
];
const WRITTEN: Record<string, (value: number) => string> = { fraction: share, bytes, seconds };
const ticked = (unit: string) => (value: number) => (unit === "fraction" ? `${Math.round(100 * value)} %` : (WRITTEN[unit] ?? figure)(value));

export function Chart({ label, unit, over, lines, marks, isFirst = true }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const tip = useRef<HTMLDivElement>(null);
  const theme = useTheme();
  const shown = lines.slice(0, MOST_LINES);
  const written = WRITTEN[unit] ?? figure;
  const at = (x: number) => (over === "time" ? moment(new Date(1000 * x).toISOString()) : figure(x));
  useEffect(() => {
    const frame = place.current;
    if (frame === null || shown.length === 0) return;
    const tell = (plot: uPlot) => showTip(tip.current, plot, at, written);
    const plot = new uPlot(optionsOf(frame.clientWidth, unit, over, shown, marks, theme, tell), aligned(shown, roomOf(over)), frame);
    const resized = new ResizeObserver(() => plot.setSize({ width: frame.clientWidth, height: HEIGHT }));
    resized.observe(frame);
    return () => {
      resized.disconnect();
      plot.destroy();
    };
  });
  const rows: ReactNode[][] = lines.flatMap((line) => line.points.filter(([, y]) => y !== null).map(([x, y]) => [line.name, at(x), written(y!)]));
  const fences = marks.map((mark): ReactNode[] => [`fence: ${mark.label}`, at(mark.x), "–"]);
  const x = { time: "When", round: "Round", period: "Period" }[over];
  return (
    <Picture label={label} head={["Line", x, label]} rows={[...fences, ...rows]}>
      <div className="chart-frame">
        <div className="chart" ref={place} role="img" aria-label={`${label}: ${shown.map((line) => summary(line, written)).join("; ")}`} />
        <div className="tip" ref={tip} hidden aria-hidden="true" />
      </div>
      <ul className="legend">
        {shown.map((line, i) => (
          <li key={line.name}>
            <svg viewBox="0 0 32 10" aria-hidden="true">
              <line x1="0" y1="5" x2="32" y2="5" stroke={colour(i, theme)} strokeWidth="3" strokeDasharray={DASHES[i % 8].join(" ")} />
            </svg>
            {line.name}
          </li>
        ))}
        {lines.length > MOST_LINES && <li>and {lines.length - MOST_LINES} more in the table</li>}
      </ul>
      {marks.length > 0 && isFirst && <Fences marks={marks} />}
    </Picture>
  );
}

/** In words what the lines across the picture mean, and where to read on. */
function Fences({ marks }: { marks: Mark[] }) {
  const known = [...new Map(marks.map((mark) => [mark.request, mark])).values()];
  return (
    <p className="note">
      <svg className="swatch" viewBox="0 0 8 12" aria-hidden="true">
        <line className="fence-line" x1="4" y1="0" x2="4" y2="12" />
      </svg>
      A fence: from here on the model is one without the forgotten data. Figures of models that were purged are gone with them. Drawn:{" "}
      {known.slice(0, MOST_MARKS).map((mark, i) => (
        <span key={mark.request}>
          {i > 0 && ", "}
          <Link to="/requests/$id" params={{ id: mark.request }}>{mark.label}</Link>
        </span>
      ))}
      {known.length > MOST_MARKS && ` and ${known.length - MOST_MARKS} more`}.
    </p>
  );
}

function summary(line: Line, written: (value: number) => string): string {
  const known = line.points.filter(([, y]) => y !== null);
  const [first, last] = [known[0], known.at(-1)];
  return first && last ? `${line.name} from ${written(first[1]!)} to ${written(last[1]!)}` : line.name;
}

const roomOf = (over: Over) => (over === "time" ? 30 : 1);
const colour = (i: number, theme: Theme) => COLOURS[theme][i % 8];
const variable = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Where a line says nothing it is drawn on (undefined), where it says that there is nothing it is broken (null). */
function aligned(lines: Line[], room: number): uPlot.AlignedData {
  const known = [...new Set(lines.flatMap((line) => line.points.map(([x]) => x)))].sort((a, b) => a - b);
  const xs = known.length === 1 ? [known[0] - room, known[0], known[0] + room] : known; // one alone has no scale
  const places = new Map(xs.map((x, i) => [x, i]));
  const columns = lines.map((line) => {
    const ys = new Array<number | null | undefined>(xs.length).fill(undefined);
    for (const [x, y] of line.points) ys[places.get(x)!] = y;
    return ys;
  });
  return [xs, ...columns];
}

function optionsOf(width: number, unit: string, over: Over, lines: Line[], marks: Mark[], theme: Theme, tell: (plot: uPlot) => void): uPlot.Options {
  const font = `12px ${getComputedStyle(document.body).fontFamily}`;
  const axis = { font, stroke: variable("--quiet"), grid: { stroke: variable("--line"), width: 1 }, ticks: { stroke: variable("--line"), size: 4 } };
  const isTime = over === "time";
  return {
    width,
    height: HEIGHT,
    padding: [12, 16, 0, 0],
    legend: { show: false },
    cursor: { points: { size: 8 }, drag: { x: true, y: false } },
    scales: {
      x: { time: isTime },
      y: unit === "fraction" ? { range: [0, 1] } : { range: (_, low, high) => (low === high ? [Math.min(0, low), high > 0 ? 1.25 * high : 1] : uPlot.rangeNum(low, high, 0.1, true)) },
    },
    axes: [
      { ...axis, size: isTime ? 44 : 32, ...(isTime ? { space: 70, values: TIMES as uPlot.Axis.Values } : { incrs: WHOLE }) },
      { ...axis, size: 72, values: (_: uPlot, ticks: number[]) => ticks.map(ticked(unit)), ...(unit === "clients" ? { incrs: WHOLE } : {}) },
    ],
    series: [{}, ...lines.map((line, i) => ({
      label: line.name, stroke: colour(i, theme), dash: DASHES[i % 8], width: 2,
      points: { show: line.points.length < 40, size: 6, fill: variable("--ground") },
    }))],
    hooks: { draw: [(plot) => drawFences(plot, marks, font)], setCursor: [tell] },
  };
}

/** Labels that would lie on each other stand in rows; beyond three rows the lines alone are drawn. */
function drawFences(plot: uPlot, marks: Mark[], font: string): void {
  const { ctx, bbox } = plot;
  const scale = devicePixelRatio;
  const ends: number[] = [];
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = variable("--fence");
  ctx.textAlign = "left";
  ctx.textBaseline = "alphabetic";
  ctx.lineWidth = 2 * scale;
  ctx.setLineDash([6 * scale, 3 * scale]);
  ctx.font = font.replace("12px", `600 ${11 * scale}px`);
  const places = new Map<number, Mark[]>();
  for (const mark of marks) {
    const at = Math.round(plot.valToPos(mark.x, "x", true));
    if (at >= bbox.left && at <= bbox.left + bbox.width) places.set(at, [...(places.get(at) ?? []), mark]);
  }
  for (const [at, found] of [...places].sort(([a], [b]) => a - b)) {
    ctx.beginPath();
    ctx.moveTo(at, bbox.top);
    ctx.lineTo(at, bbox.top + bbox.height);
    ctx.stroke();
    const text = found.length > 1 ? `${found.length} fences` : `fence: ${found[0].label}`;
    const width = ctx.measureText(text).width;
    const left = at + width + 8 * scale > bbox.left + bbox.width ? at - width - 6 * scale : at + 6 * scale;
    const row = [0, 1, 2].find((one) => (ends[one] ?? -1) < left);
    if (row === undefined) continue;
    ends[row] = left + width + 4 * scale;
    const top = bbox.top + (4 + 16 * row) * scale;
    ctx.globalAlpha = 0.9;
    ctx.fillStyle = variable("--ground");
    ctx.fillRect(left - 3 * scale, top - 2 * scale, width + 6 * scale, 15 * scale);
    ctx.globalAlpha = 1;
    ctx.fillStyle = variable("--fence");
    ctx.fillText(text, left, top + 10 * scale);
  }
  ctx.restore();
}

function showTip(tip: HTMLDivElement | null, plot: uPlot, at: (x: number) => string, written: (value: number) => string): void {
  const index = plot.cursor.idx;
  if (tip === null) return;
  const found = index == null ? [] : plot.series.slice(1).flatMap((line, i) => {
    const value = plot.data[i + 1][index];
    return value == null ? [] : [`${String(line.label)}: ${written(value)}`];
  });
  tip.hidden = found.length === 0;
  if (index == null || found.length === 0) return;
  tip.replaceChildren(...[at(plot.data[0][index]), ...found.slice(0, 10)].map((text) => Object.assign(document.createElement("div"), { textContent: text })));
  const left = (plot.cursor.left ?? 0) + plot.bbox.left / devicePixelRatio;
  const isRight = left > 0.6 * plot.width;
  tip.style.left = isRight ? "auto" : `${left + 14}px`;
  tip.style.right = isRight ? `${plot.width - left + 14}px` : "auto";
}
