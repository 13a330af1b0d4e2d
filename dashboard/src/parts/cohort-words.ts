/** What pictures of cohorts have in common: what an erasure made of each, in words, signs and colours. */
import type { RunTopology, TopologyCohort } from "../api/operations";
import { count, counted, share, short } from "../words";
import type { IconName } from "./icon";

export type State = "untouched" | "held" | "renewed" | "rolled" | "retired";
/** Of which erasure, and whether as it was at the fence or as it is now. */
export type Look = { erasure: string | null; isBefore: boolean };

export const STATES: Record<State, { icon: IconName | null; word: string; means: string }> = {
  untouched: { icon: null, word: "untouched", means: "untouched: the data was never in it" },
  held: { icon: "drop", word: "had the data", means: "had the data in it" },
  renewed: { icon: "restart", word: "began again", means: "began again from clean cohorts inside it" },
  rolled: { icon: "rewind", word: "went back", means: "went back to its newest clean model, or began anew" },
  retired: { icon: "ban", word: "retired", means: "retired: nobody is left to train it" },
};

export function erasuresOf(found: RunTopology): { id: string; at: string | null }[] {
  const all = new Map(found.cohorts.flatMap((one) => one.fences.map((fence) => [fence.erasure_id, fence.at] as const)));
  return [...all].map(([id, at]) => ({ id, at })).sort((a, b) => (b.at ?? "").localeCompare(a.at ?? ""));
}

export function stateOf(one: TopologyCohort, look: Look): State {
  const fence = one.fences.find((each) => each.erasure_id === look.erasure);
  if (fence === undefined) return "untouched";
  if (look.isBefore) return "held";
  return one.phase === "retired" ? "retired" : fence.reinitialised ? "renewed" : "rolled";
}

/** Cohorts of a tree have names for machines: `leaf:clinic-a`, `node:23d12051f554`. */
export function nameOfCohort(one: TopologyCohort): string {
  if (one.name === null) return "erased client";
  const [kind, rest] = one.name.split(":");
  return rest === undefined ? one.name : kind === "node" ? `node ${rest.slice(0, 6)}` : rest;
}

export function describe(one: TopologyCohort, look: Look): string {
  return `${nameOfCohort(one)}: ${counted(one.num_members, "member")}, epoch ${one.epoch}, round ${one.round}, accuracy ${share(one.accuracy)}; ${STATES[stateOf(one, look)].means}`;
}

export function classOf(one: TopologyCohort, look: Look, chosen: string | null, wanted: string): string {
  return [stateOf(one, look), one.id === chosen ? "chosen" : "", isWanted(one, wanted) ? "wanted" : ""].join(" ");
}

export function isWanted(one: TopologyCohort, wanted: string): boolean {
  return wanted !== "" && one.members.some((member) => member.name.includes(wanted));
}

export function clipped(text: string, most = 18): string {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

/** What the picture shows, in a sentence. */
export function story(found: RunTopology, look: Look): string {
  if (look.erasure === null) return "No erasure has touched this run.";
  const states = found.cohorts.map((one) => stateOf(one, look));
  const number = (state: State) => states.filter((one) => one === state).length;
  const touched = states.length - number("untouched");
  if (look.isBefore) return `Before request ${short(look.erasure)}: the data was in ${count(touched)} of ${counted(states.length, "cohort")}, and in no other.`;
  const parts = (["renewed", "rolled", "retired"] as const).filter((state) => number(state) > 0).map((state) => `${count(number(state))} ${STATES[state].word}`);
  return `After request ${short(look.erasure)}: ${parts.join(", ")}; ${count(number("untouched"))} went on untouched.`;
}
