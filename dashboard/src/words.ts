/** How values are written for people. What is not known is said so, and never shown as zero. */
import { LOCALE } from "./locale";

export const UNKNOWN = "not measured";
const whole = new Intl.NumberFormat(LOCALE, { maximumFractionDigits: 0 });
const decimals = new Intl.NumberFormat(LOCALE, { maximumFractionDigits: 4 });
const dateAndTime = new Intl.DateTimeFormat(LOCALE, { dateStyle: "medium", timeStyle: "medium" });
const dateOnly = new Intl.DateTimeFormat(LOCALE, { dateStyle: "medium" });

type Maybe<T> = T | null | undefined;

export function count(value: Maybe<number>): string {
  return value == null ? UNKNOWN : whole.format(value);
}

export function figure(value: Maybe<number>): string {
  return value == null ? UNKNOWN : decimals.format(value);
}

export function counted(number: number, one: string, many = `${one}s`): string {
  return `${whole.format(number)} ${number === 1 ? one : many}`;
}

export function share(value: Maybe<number>): string {
  return value == null ? UNKNOWN : `${(100 * value).toFixed(1)} %`;
}

export function bytes(value: Maybe<number>): string {
  if (value == null) return UNKNOWN;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let [scaled, unit] = [value, 0];
  while (scaled >= 1000 && unit < units.length - 1) [scaled, unit] = [scaled / 1000, unit + 1];
  return `${scaled < 10 && unit > 0 ? scaled.toFixed(1) : whole.format(scaled)} ${units[unit]}`;
}

export function seconds(value: Maybe<number>): string {
  if (value == null) return UNKNOWN;
  if (value < 1) return `${(1000 * value).toFixed(0)} ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 7200) return `${(value / 60).toFixed(0)} min`;
  return value < 172_800 ? `${(value / 3600).toFixed(1)} h` : `${(value / 86_400).toFixed(1)} days`;
}

export function moment(value: Maybe<string>): string {
  return value == null ? "–" : dateAndTime.format(new Date(value));
}

export function day(value: Maybe<string>): string {
  return value == null ? "–" : dateOnly.format(new Date(value));
}

let skewMs = 0;
const SMALLEST_SKEW_MS = 5000;

/** What the coordinator's clock says, as an answer told it; clocks that differ a little are taken for equal. */
export function hearTime(told: string | null): void {
  const skew = told === null ? NaN : Date.parse(told) - Date.now();
  if (Number.isFinite(skew)) skewMs = Math.abs(skew) < SMALLEST_SKEW_MS ? 0 : skew;
}

/** Now by the clock of the coordinator, which all times on a page are of: that of this machine may be off. */
export function now(): number {
  return Date.now() + skewMs;
}

export function ago(value: Maybe<string>): string {
  if (value == null) return "never";
  const elapsed = (now() - new Date(value).getTime()) / 1000;
  return elapsed < 0 ? moment(value) : elapsed < 5 ? "just now" : `${seconds(elapsed)} ago`;
}

/** A model's accuracy: on the coordinator's data if it was judged there, else at the clients. */
export function accuracyOf(metrics: Record<string, number>): number | undefined {
  return metrics.validation_accuracy ?? metrics.clients_accuracy;
}

/** Recovery after an erasure adds rounds to those that were planned. */
export function rounds(done: number, planned: number): string {
  return done > planned ? `${whole.format(done)} (${whole.format(planned)} planned)` : `${whole.format(done)} of ${whole.format(planned)}`;
}

export function daysLeft(days: Maybe<number>): string {
  if (days == null) return "over";
  if (days < 0) return `${counted(-days, "day")} overdue`;
  return days === 0 ? "due today" : `${counted(days, "day")} left`;
}

/** The beginning of an id or digest: enough to tell two apart by eye. Ids begin with the time, so their end is shown. */
export function short(id: string): string {
  return id.startsWith("sha256:") ? id.slice(0, 19) : id.slice(-8);
}

export function sentence(word: string): string {
  return (word.charAt(0).toUpperCase() + word.slice(1)).replaceAll("_", " ");
}
