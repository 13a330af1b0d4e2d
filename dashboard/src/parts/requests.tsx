/** Parts that several pages show of requests to forget. */
import { Link } from "@tanstack/react-router";
import type { Actor, ErasureRequest } from "../api/operations";
import { day, daysLeft, short } from "../words";
import { Chip, Status } from "./basics";
import type { Column } from "./table";

type RequestStatus = ErasureRequest["status"];
export const OPEN: RequestStatus[] = ["received", "awaiting_approval", "fenced", "executing", "verifying", "requires_action"];
export const OVER: RequestStatus[] = ["completed", "denied", "cancelled", "failed"];

export const GROUNDS: Record<string, string> = {
  withdrawal: "Consent was withdrawn, Art. 17(1)(b)",
  objection: "Objection to the processing, Art. 17(1)(c)",
  unlawful: "Processed unlawfully, Art. 17(1)(d)",
  legal_obligation: "A legal obligation, Art. 17(1)(e)",
  not_necessary: "Not necessary any more, Art. 17(1)(a)",
  child: "Collected from a child, Art. 17(1)(f)",
  other: "Another ground",
};

export function nameOf(actor: Actor | null | undefined): string {
  if (!actor) return "not recorded";
  return `${actor.person ?? actor.label ?? `credential ${short(actor.credential_id)}`} (${actor.role})`;
}

export function Countdown({ of }: { of: Pick<ErasureRequest, "days_left" | "legal_deadline"> }) {
  const left = of.days_left;
  const due = `due ${day(of.legal_deadline)}`;
  if (left == null) return <Chip icon="dash" tone="quiet" word="closed" title={`It was ${due}`} />;
  return <Chip icon={left < 0 ? "alert" : "clock"} tone={left < 0 ? "bad" : left <= 7 ? "unsure" : "good"} word={daysLeft(left)} title={due} />;
}

function Who({ of, otherwise }: { of: Actor | null | undefined; otherwise: string }) {
  if (!of) return <span className="clip narrow-clip" title={otherwise}>{otherwise}</span>;
  return (
    <span className="clip narrow-clip" title={nameOf(of)}>
      {of.person ?? of.label ?? `credential ${short(of.credential_id)}`} <span className="note">{of.role}</span>
    </span>
  );
}

export const REQUEST_COLUMNS: Column<ErasureRequest>[] = [
  {
    name: "Request",
    sort: "created",
    cell: (one) => (
      <Link to="/requests/$id" params={{ id: one.id }} className="clip narrow-clip" title={one.external_ref ?? one.id}>
        {one.external_ref ?? short(one.id)}
      </Link>
    ),
  },
  { name: "Status", cell: (one) => <Status of={one.status} /> },
  { name: "Deadline", sort: "deadline", cell: (one) => <Countdown of={one} /> },
  { name: "Forget", cell: (one) => <span className="clip narrow-clip" title={one.subjects.join(", ")}>{one.subjects.join(", ")}</span> },
  { name: "Scope", cell: (one) => one.scope },
  { name: "Method", cell: (one) => one.chosen ?? one.method },
  { name: "Filed by", cell: (one) => <Who of={one.filed_by} otherwise={one.requested_by} /> },
  { name: "Decided by", cell: (one) => <Who of={one.decided_by} otherwise="–" /> },
];
