/** Who is here, what they do, and what they sent. */
import { getRouteApi, Link } from "@tanstack/react-router";
import { tasksOfClient, type Task, type Worker } from "../api/operations";
import { usePages } from "../api/pages";
import { useWorkers } from "../parts/away";
import { Awaiting, Card, Empty, Field, Page, Status } from "../parts/basics";
import { Table, type Column } from "../parts/table";
import { ago, bytes, count, moment, sentence, share } from "../words";

const route = getRouteApi("/inside/workers");
type Filter = { status?: string; name?: string; client?: string };

export function deviceOf(worker: Worker): string {
  const device = worker.device as Record<string, unknown> | null;
  return device === null ? "–" : String(device.name || device.kind || "–");
}

const COLUMNS: Column<Worker>[] = [
  { name: "Client", cell: (one) => <Link to="/workers" search={(before: object) => ({ ...before, client: one.client_id }) as never} className="clip narrow-clip" title={one.client_name}>{one.client_name}</Link> },
  { name: "Worker", cell: (one) => <Status of={one.status} word={one.status === "never" ? "Never seen" : undefined} /> },
  { name: "Last seen", cell: (one) => <span className="once" title={moment(one.last_seen_at)}>{ago(one.last_seen_at)}</span> },
  { name: "In hand", cell: (one) => (one.task_in_hand ? <Link to="/runs/$id" params={{ id: one.task_in_hand.run_id }} search={{ tab: "tasks" } as never}>{one.task_in_hand.kind}, round {one.task_in_hand.round}, {share(one.task_in_hand.progress)}</Link> : "–") },
  { name: "Last failure", cell: (one) => <span className="clip narrow-clip" title={one.last_failure?.reason}>{one.last_failure?.reason ?? "–"}</span> },
  { name: "Device", cell: deviceOf },
  { name: "Version", cell: (one) => one.version ?? "–" },
  { name: "Tasks done", isNumber: true, cell: (one) => count(one.tasks_done) },
  { name: "Sent", isNumber: true, cell: (one) => bytes(one.bytes_received) },
];

export function Workers() {
  const filter = route.useSearch() as Filter;
  const navigate = route.useNavigate();
  const query = useWorkers();
  const change = (part: Filter) => void navigate({ search: (before: object) => ({ ...before, ...part }) as never, replace: true });
  const rows = (query.data ?? []).filter((one) => (!filter.status || one.status === filter.status) && (!filter.name || one.client_name.includes(filter.name)));
  const chosen = query.data?.find((one) => one.client_id === filter.client);
  return (
    <Page title="Workers" note="One for each client. A worker that was not heard of for a minute is away.">
      <form className="filters" aria-label="Filters" onSubmit={(event) => event.preventDefault()}>
        <Field label="Worker">
          {(id) => (
            <select id={id} value={filter.status ?? ""} onChange={(event) => change({ status: event.target.value || undefined })}>
              <option value="">all</option>
              {["waiting", "working", "away", "never"].map((one) => <option key={one} value={one}>{sentence(one)}</option>)}
            </select>
          )}
        </Field>
        <Field label="Name">{(id) => <input id={id} type="search" value={filter.name ?? ""} onChange={(event) => change({ name: event.target.value || undefined })} />}</Field>
      </form>
      {chosen && <OneClient worker={chosen} onClose={() => change({ client: undefined })} />}
      <Awaiting query={query}>
        <Table label="Workers" columns={COLUMNS} rows={rows} keyOf={(one) => one.client_id} empty={<Empty command="lethe clients kit NAME">No worker fits. To enrol a client and give it all it needs:</Empty>} />
      </Awaiting>
    </Page>
  );
}

function OneClient({ worker, onClose }: { worker: Worker; onClose: () => void }) {
  const list = usePages(["federation", worker.client_id, "tasks"], (cursor) => tasksOfClient(worker.client_id, cursor));
  const columns: Column<Task>[] = [
    { name: "Run", cell: (one) => <Link to="/runs/$id" params={{ id: one.run_id }}>round {one.round}</Link> },
    { name: "Kind", cell: (one) => one.kind },
    { name: "Status", cell: (one) => <Status of={one.status} /> },
    { name: "Attempt", isNumber: true, cell: (one) => one.attempt },
    { name: "Failure", cell: (one) => one.failure ?? "–" },
    { name: "End of its log", cell: (one) => <code className="clip">{one.log_tail ?? "–"}</code> },
  ];
  return (
    <Card title={`Tasks of ${worker.client_name}`} actions={<button type="button" className="small" onClick={onClose}>Close</button>}>
      <p>
        <Status of={worker.status} /> last seen {ago(worker.last_seen_at)}; {count(worker.tasks_done)} tasks done, {bytes(worker.bytes_received)} sent.
      </p>
      {worker.last_failure && <p className="warning">Last failure, in round {worker.last_failure.round}: {worker.last_failure.reason}</p>}
      <div className="half">
        <Table label={`Tasks of ${worker.client_name}`} columns={columns} rows={list.items} keyOf={(one) => one.id} isLoading={list.isLoading} error={list.error} more={list.more} isMore={list.isMore} empty={<Empty command="lethe worker check">It was asked for nothing yet. On its machine, to try it:</Empty>} />
      </div>
    </Card>
  );
}
