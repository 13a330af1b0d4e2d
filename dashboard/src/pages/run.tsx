/** One run: its curves with the fences drawn on them, who did what in which round, tasks with their logs. */
import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { problemOf } from "../api/client";
import { changeRun, checkpoints, run, runEvents, series, tasks, type Run as RunResource, type RunSeries, type Task, type TaskStatus } from "../api/operations";
import { usePages } from "../api/pages";
import { useAwaited } from "../parts/away";
import { Awaiting, Card, Dialog, Empty, Facts, Field, Page, Status, Switch, Tabs, Trouble } from "../parts/basics";
import { Chart } from "../parts/chart";
import { Classes } from "../parts/classes";
import { RoundsGrid } from "../parts/grid";
import { BY_CLASS, linesOf, marksOf, SHOWN, titleOf, unitOf, type Over } from "../parts/series";
import { Table, type Column } from "../parts/table";
import { useSession } from "../session";
import { accuracyOf, ago, bytes, counted, moment, rounds, sentence, share, short } from "../words";

const route = getRouteApi("/inside/runs/$id");
const TABS = [["curves", "Curves"], ["grid", "Clients × rounds"], ["tasks", "Tasks"], ["models", "Models"], ["events", "Events"], ["spec", "Specification"]] as const;
type Tab = (typeof TABS)[number][0];

export function Run() {
  const { id } = route.useParams();
  const { tab = "curves" } = route.useSearch() as { tab?: Tab };
  const navigate = route.useNavigate();
  const query = useQuery({ queryKey: ["run", id], queryFn: () => run(id), refetchInterval: 10_000 });
  const one = query.data;
  const show = (next: Tab) => void navigate({ search: (before: object) => ({ ...before, tab: next }) as never, replace: true });
  return (
    <Page
      title={one ? `Run ${one.name}` : "Run"}
      note={one && <>Round {rounds(one.round, one.rounds_planned)}, accuracy {share(one.accuracy)}{one.reason && one.status !== "running" && one.status !== "paused" ? `; ${one.reason}` : ""}</>}
      actions={one && <Controls run={one} />}
    >
      <Awaiting query={query}>
        {one && (
          <>
            <WhyItWaits run={one} />
            <Tabs label="Parts of the run" tabs={TABS} now={tab} onChange={show}>
              {tab === "curves" && <Curves id={id} />}
              {tab === "grid" && <RoundsGrid id={id} />}
              {tab === "tasks" && <Tasks id={id} />}
              {tab === "models" && <Models id={id} />}
              {tab === "events" && <Events id={id} />}
              {tab === "spec" && <Card><pre className="wrap" tabIndex={0}>{JSON.stringify(one.spec, null, 2)}</pre></Card>}
            </Tabs>
          </>
        )}
      </Awaiting>
    </Page>
  );
}

function Controls({ run: one }: { run: RunResource }) {
  const { can } = useSession();
  const queries = useQueryClient();
  const [isCancelling, setCancelling] = useState(false);
  const changing = useMutation({
    mutationFn: (change: "pause" | "resume" | "cancel") => changeRun(one.id, change, one.version),
    onSettled: () => {
      setCancelling(false);
      void queries.invalidateQueries({ queryKey: ["run", one.id] });
    },
  });
  const isOpen = one.status === "running" || one.status === "paused";
  const hasChanged = changing.error && problemOf(changing.error).status === 412;
  return (
    <>
      <Status of={one.status} />
      <Link to="/runs/$id/cohorts" params={{ id: one.id }} className="button">Cohorts</Link>
      {can("train") && one.status === "running" && <button type="button" disabled={changing.isPending} onClick={() => changing.mutate("pause")}>Pause</button>}
      {can("train") && one.status === "paused" && <button type="button" className="primary" disabled={changing.isPending} onClick={() => changing.mutate("resume")}>Resume</button>}
      {can("train") && isOpen && <button type="button" onClick={() => setCancelling(true)}>Cancel</button>}
      {hasChanged ? <div className="trouble" role="alert">The run changed meanwhile; nothing was done. It is now: {sentence(one.status)}.</div> : <Trouble error={changing.error} />}
      <Dialog title={`Cancel ${one.name}?`} isOpen={isCancelling} onClose={() => setCancelling(false)}>
        <p>Its models stay; it does not train any more, and cannot be resumed.</p>
        <div className="actions">
          <button type="button" onClick={() => setCancelling(false)}>Back</button>
          <button type="button" className="danger" disabled={changing.isPending} onClick={() => changing.mutate("cancel")}>Cancel the run</button>
        </div>
      </Dialog>
    </>
  );
}

/** A run that stands still has a reason: its own, or a worker that is away with a task in hand. */
function WhyItWaits({ run: one }: { run: RunResource }) {
  const isOpen = one.status === "running" || one.status === "paused";
  const away = useAwaited(one.id, isOpen);
  if (!isOpen) return null;
  if (one.reason === null && away.length === 0) return null;
  return (
    <div className="warning">
      {one.reason && <p>{one.reason}</p>}
      {away.length > 0 && (
        <>
          <p>It waits for {counted(away.length, "worker")} that {away.length === 1 ? "is" : "are"} away:</p>
          <ul>
            {away.slice(0, 8).map(({ task, worker }) => (
              <li key={task.id}>
                <Link to="/workers" search={{ client: task.client_id }}>{task.client_name}</Link>: round {task.round}, {worker.last_seen_at ? `last seen ${ago(worker.last_seen_at)}` : "never seen"}
              </li>
            ))}
          </ul>
          <p className="note">Start its worker again, or let the round close without it: the deadline of the round and its quorum decide.</p>
        </>
      )}
    </div>
  );
}

function Curves({ id }: { id: string }) {
  const { over = "time" } = route.useSearch() as { over?: Over };
  const navigate = route.useNavigate();
  const query = useQuery({ queryKey: ["run", id, "series"], queryFn: () => series(id, [...SHOWN, BY_CLASS]) });
  const found = query.data;
  const names = found ? [...new Set(found.metrics.map((one) => one.name))] : [];
  const shown = names.filter((name) => SHOWN.includes(name)).sort((a, b) => SHOWN.indexOf(a) - SHOWN.indexOf(b));
  const classes = found?.metrics.filter((one) => one.name.startsWith("accuracy/")) ?? [];
  return (
    <Awaiting query={query}>
      {found && shown.length === 0 && <Empty command="lethe runs logs NAME">Nothing was measured yet. To see what it is doing:</Empty>}
      {found && shown.length > 0 && (
        <>
          <form className="filters" aria-label="Axis" onSubmit={(event) => event.preventDefault()}>
            <Switch label="Over" options={[["time", "Time"], ["round", "Rounds"]]} now={over} onChange={(next) => void navigate({ search: (before: object) => ({ ...before, over: next }) as never, replace: true })} />
          </form>
          {found.cohorts_left_off > 0 && <p className="note">{counted(found.cohorts_left_off, "further cohort")} not drawn; they are on the page of cohorts.</p>}
          {shown.slice(0, 1).map((name) => <Curve key={name} name={name} found={found} over={over} isFirst />)}
          {classes.length > 0 && <Classes found={found} />}
          <div className="pair">{shown.slice(1).map((name) => <Curve key={name} name={name} found={found} over={over} />)}</div>
        </>
      )}
    </Awaiting>
  );
}

function Curve({ name, found, over, isFirst = false }: { name: string; found: RunSeries; over: Over; isFirst?: boolean }) {
  const lines = linesOf(found.metrics.filter((one) => one.name === name), over);
  return (
    <Card title={titleOf(name)}>
      <Chart label={titleOf(name)} unit={unitOf(found, name)} over={over} lines={lines} marks={marksOf(found, over)} isFirst={isFirst} />
    </Card>
  );
}

const TASK_STATUSES = ["ready", "standby", "leased", "done", "failed", "revoked"];

function Tasks({ id }: { id: string }) {
  const { task_status } = route.useSearch() as { task_status?: TaskStatus };
  const navigate = route.useNavigate();
  const [open, setOpen] = useState<Task | null>(null);
  const list = usePages(["run", id, "tasks", task_status], (cursor) => tasks(id, task_status, cursor));
  const columns: Column<Task>[] = [
    { name: "Client", cell: (one) => <Link to="/workers" search={{ client: one.client_id }} className="clip narrow-clip" title={one.client_name}>{one.client_name}</Link> },
    { name: "Kind", cell: (one) => one.kind },
    { name: "Round", isNumber: true, cell: (one) => one.round },
    { name: "Status", cell: (one) => <Status of={one.status} /> },
    { name: "Attempt", isNumber: true, cell: (one) => one.attempt },
    { name: "Progress", isNumber: true, cell: (one) => share(one.progress) },
    { name: "Failure", cell: (one) => <span className="clip">{one.failure ?? "–"}</span> },
    { name: "Log", cell: (one) => <button type="button" className="small" onClick={() => setOpen(one)}>Show</button> },
  ];
  return (
    <>
      <form className="filters" aria-label="Filters" onSubmit={(event) => event.preventDefault()}>
        <Field label="Status">
          {(at) => (
            <select id={at} value={task_status ?? ""} onChange={(event) => void navigate({ search: (before: object) => ({ ...before, task_status: event.target.value || undefined }) as never, replace: true })}>
              <option value="">all</option>
              {TASK_STATUSES.map((one) => <option key={one} value={one}>{sentence(one)}</option>)}
            </select>
          )}
        </Field>
      </form>
      <Table label="Tasks" columns={columns} rows={list.items} keyOf={(one) => one.id} isLoading={list.isLoading} error={list.error} retry={list.retry} more={list.more} isMore={list.isMore} />
      <Dialog title={open ? `${open.client_name}, round ${open.round}` : ""} isOpen={open !== null} onClose={() => setOpen(null)}>
        {open && (
          <>
            <Facts of={[["Task", <code key="t" className="wrap">{open.id}</code>], ["Status", <Status key="s" of={open.status} />], ["Failure", open.failure ?? "–"], ["Lease until", moment(open.lease_expires_at)]]} />
            <h3>The end of its log</h3>
            <pre className="wrap" tabIndex={0}>{open.log_tail ?? "Its worker sent none."}</pre>
            <button type="button" onClick={() => setOpen(null)}>Close</button>
          </>
        )}
      </Dialog>
    </>
  );
}

function Models({ id }: { id: string }) {
  const list = usePages(["run", id, "checkpoints"], (cursor) => checkpoints(id, cursor));
  return (
    <Table
      label="Models"
      rows={list.items}
      keyOf={(one) => one.id}
      isLoading={list.isLoading}
      error={list.error}
      more={list.more}
      isMore={list.isMore}
      columns={[
        { name: "Model", cell: (one) => <Link to="/checkpoints/$id" params={{ id: one.id }} className="once">{one.cohort}, round {one.round}</Link> },
        { name: "Made by", cell: (one) => one.kind },
        { name: "Epoch", isNumber: true, cell: (one) => one.epoch },
        { name: "Accuracy", isNumber: true, cell: (one) => share(accuracyOf(one.metrics)) },
        { name: "Served", cell: (one) => (one.superseded_by ? "not since an erasure" : one.is_head ? "now" : "before") },
        { name: "Stored", cell: (one) => (one.stored ? bytes(one.bytes) : "deleted") },
        { name: "Digest", cell: (one) => <code>{short(one.digest)}</code> },
        { name: "Made", cell: (one) => <span className="once">{moment(one.created_at)}</span> },
      ]}
    />
  );
}

function Events({ id }: { id: string }) {
  const list = usePages(["run", id, "events"], (cursor) => runEvents(id, cursor));
  return (
    <Table
      label="Events"
      rows={list.items}
      keyOf={(one) => String(one.seq)}
      isLoading={list.isLoading}
      error={list.error}
      more={list.more}
      isMore={list.isMore}
      columns={[
        { name: "Number", isNumber: true, cell: (one) => one.seq },
        { name: "When", cell: (one) => moment(one.at) },
        { name: "What", cell: (one) => one.type },
        { name: "Details", cell: (one) => <code className="clip">{JSON.stringify(one.data)}</code> },
      ]}
    />
  );
}
