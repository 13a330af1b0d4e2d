/** The runs of the federation. */
import { getRouteApi, Link } from "@tanstack/react-router";
import { runs, type Run } from "../api/operations";
import { usePages } from "../api/pages";
import { useFederation } from "../federation";
import { Bar, Empty, Field, Page, Status } from "../parts/basics";
import { Table, type Column } from "../parts/table";
import { ago, rounds, sentence, share } from "../words";

const route = getRouteApi("/inside/runs");
const STATUSES = ["running", "paused", "completed", "failed", "cancelled"];

const COLUMNS: Column<Run>[] = [
  { name: "Run", cell: (one) => <Link to="/runs/$id" params={{ id: one.id }}>{one.name}</Link> },
  { name: "Status", cell: (one) => <Status of={one.status} /> },
  {
    name: "Rounds",
    cell: (one) => (
      <span className="row">
        <Bar value={one.round} of={one.rounds_planned} label={`Rounds of ${one.name}`} /> {rounds(one.round, one.rounds_planned)}
      </span>
    ),
  },
  { name: "Accuracy", isNumber: true, cell: (one) => share(one.accuracy) },
  { name: "Begun", cell: (one) => ago(one.created_at) },
  { name: "Why", cell: (one) => <span className="clip">{one.reason ?? "–"}</span> },
];

export function Runs() {
  const federation = useFederation();
  const navigate = route.useNavigate();
  const { status } = route.useSearch() as { status?: Run["status"] };
  const list = usePages(["federation", federation, "runs", status], (cursor) => runs(federation, status, cursor));
  return (
    <Page title="Runs" actions={<Link to="/compare" className="button">Compare runs</Link>}>
      <form className="filters" aria-label="Filters" onSubmit={(event) => event.preventDefault()}>
        <Field label="Status">
          {(id) => (
            <select id={id} value={status ?? ""} onChange={(event) => void navigate({ search: (before: object) => ({ ...before, status: event.target.value || undefined }) as never, replace: true })}>
              <option value="">all</option>
              {STATUSES.map((one) => <option key={one} value={one}>{sentence(one)}</option>)}
            </select>
          )}
        </Field>
      </form>
      <Table
        label="Runs"
        columns={COLUMNS}
        rows={list.items}
        keyOf={(one) => one.id}
        isLoading={list.isLoading}
        error={list.error}
        retry={list.retry}
        more={list.more}
        isMore={list.isMore}
        empty={<Empty command="lethe runs create run.yaml --watch">There is no run here. To begin one:</Empty>}
      />
    </Page>
  );
}
