/** Figures of runs as lines of a chart. */
import type { RunSeries, Series } from "../api/operations";
import { sentence, short } from "../words";
import type { Line, Mark } from "./chart";

export type Over = "time" | "round";
export const SHOWN = ["accuracy", "loss", "seconds", "bytes_received", "clients"];
const TITLES: Record<string, string> = {
  accuracy: "Accuracy", loss: "Loss", seconds: "Seconds of a round", bytes_received: "Bytes received in a round", clients: "Clients in a round",
};

export function titleOf(name: string): string {
  return TITLES[name] ?? sentence(name);
}

export function unitOf(found: RunSeries, name: string): string {
  const unit = found.metrics.find((one) => one.name === name)?.unit ?? "";
  return unit === "none" ? "" : unit;
}

const at = (time: string) => new Date(time).getTime() / 1000;

/** After a fence the rounds of a cohort begin again: over rounds each epoch is a line of its own. */
export function linesOf(metrics: Series[], over: Over, prefix = ""): Line[] {
  return metrics.flatMap((one) => {
    const ofClass = one.name.includes("/") ? ` class ${one.name.split("/")[1]}` : "";
    const name = `${prefix}${one.cohort_name ?? "erased"}${ofClass}`;
    if (over === "time") return [{ name, points: one.points.map((point): [number, number] => [at(point.at), point.value]) }];
    const epochs = [...new Set(one.points.map((point) => point.epoch))];
    return epochs.map((epoch) => ({
      name: epochs.length > 1 ? `${name}, epoch ${epoch}` : name,
      points: one.points.filter((point) => point.epoch === epoch).map((point): [number, number] => [point.round, point.value]),
    }));
  });
}

export function marksOf(found: RunSeries, over: Over): Mark[] {
  return found.fences.flatMap((fence) => {
    const x = over === "round" ? fence.round : fence.at === null ? null : at(fence.at);
    return x === null ? [] : [{ x, label: `request ${short(fence.erasure_id)}` }];
  });
}
