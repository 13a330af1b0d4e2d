/** What pictures of cohorts have in common. */
import type { TopologyCohort } from "../api/operations";
import { counted, share } from "../words";

export function describe(one: TopologyCohort): string {
  const fences = one.fences.length ? `, fenced ${one.fences.length === 1 ? "once" : `${one.fences.length} times`}${one.fences.at(-1)!.reinitialised ? ", began again from clean cohorts" : ""}` : "";
  return `${one.name ?? "erased"}: ${counted(one.num_members, "member")}, epoch ${one.epoch}, round ${one.round}, accuracy ${share(one.accuracy)}${fences}`;
}

export function classOf(one: TopologyCohort, chosen: string | null, wanted: string): string {
  const isWanted = wanted !== "" && one.members.some((member) => member.name.includes(wanted));
  return [one.fences.length ? "fenced" : "", one.id === chosen || isWanted ? "chosen" : ""].join(" ");
}

export function signOf(one: TopologyCohort): string {
  const last = one.fences.at(-1);
  return last === undefined ? "" : last.reinitialised ? "↺ " : "▥ ";
}

export function clipped(text: string, most = 18): string {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
