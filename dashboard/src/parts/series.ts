/** Figures of runs as lines of a chart. */
import type { RunSeries, Series, SeriesPoint } from "../api/operations";
import { sentence, short } from "../words";
import type { Line, Mark } from "./chart";

export type Over = "time" | "round";
export const SHOWN = ["accuracy", "loss", "seconds", "bytes_received", "clients"];
/** Of every class that the validation set has. */
export const BY_CLASS = "accuracy/*";
const TITLES: Record<string, string> = {
  accuracy: "Accuracy", loss: "Loss", seconds: "Duration of a round", bytes_received: "Bytes received in a round", clients: "Clients in a round",
};

export function titleOf(name: string): string {
  return TITLES[name] ?? sentence(name);
}

export function unitOf(found: RunSeries, name: string): string {
  const unit = found.metrics.find((one) => one.name === name)?.unit ?? "";
  return unit === "none" ? "" : unit;
}

const at = (time: string) => new Date(time).getTime() / 1000;

/** After a fence the rounds of a cohort begin again: over rounds each epoch is a line of its own, over time the line has a gap. */
export function linesOf(metrics: Series[], over: Over, prefix = ""): Line[] {
  return metrics.flatMap((one) => {
    const ofClass = one.name.includes("/") ? ` class ${one.name.split("/")[1]}` : "";
    const name = `${prefix}${one.cohort_name ?? "erased"}${ofClass}`;
    if (over === "time") return [{ name, points: withGaps(one.points) }];
    const epochs = [...new Set(one.points.map((point) => point.epoch))];
    return epochs.map((epoch) => ({
      name: epochs.length > 1 ? `${name}, epoch ${epoch}` : name,
      points: one.points.filter((point) => point.epoch === epoch).map((point): [number, number] => [point.round, point.value]),
    }));
  });
}

function withGaps(points: SeriesPoint[]): Line["points"] {
  return points.flatMap((point, i): Line["points"] => {
    const before = points[i - 1];
    const own: [number, number] = [at(point.at), point.value];
    return before === undefined || before.epoch === point.epoch ? [own] : [[(at(before.at) + at(point.at)) / 2, null], own];
  });
}

export function marksOf(found: RunSeries, over: Over): Mark[] {
  return found.fences.flatMap((fence) => {
    const x = over === "round" ? fence.round : fence.at === null ? null : at(fence.at);
    return x === null ? [] : [{ x, label: `request ${short(fence.erasure_id)}`, request: fence.erasure_id }];
  });
}
