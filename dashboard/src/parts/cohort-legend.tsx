/** What the signs and colours of a picture of cohorts mean: those that are in it. */
import type { ReactNode } from "react";
import type { RunTopology } from "../api/operations";
import { STATES, stateOf, type Look, type State } from "./cohort-words";
import { Icon } from "./icon";

export function CohortLegend({ found, look, children }: { found: RunTopology; look: Look; children?: ReactNode }) {
  const shown = new Set(found.cohorts.map((one) => stateOf(one, look)));
  return (
    <ul className="legend">
      {children}
      {look.erasure !== null && (Object.keys(STATES) as State[]).filter((state) => shown.has(state)).map((state) => (
        <li key={state}>
          <span className={`swatch-box ${state}`}>{STATES[state].icon && <Icon of={STATES[state].icon} />}</span> {STATES[state].means}
        </li>
      ))}
    </ul>
  );
}
