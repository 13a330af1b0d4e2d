/** What needs me? */
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { requestCounts, requests, runs, type ErasureRequest, type Run } from "../api/operations";
import { useFederation } from "../federation";
import { useAwaited, useWorkers } from "../parts/away";
import { Awaiting, Card, Empty, Page, Status } from "../parts/basics";
import { OPEN, REQUEST_COLUMNS } from "../parts/requests";
import { Table } from "../parts/table";
import { useMe, useSession } from "../session";
import { ago, count, now } from "../words";

export function Inbox() {
  const me = useMe();
  const { can } = useSession();
  return (
    <Page title="Inbox" note={me.client_id === null ? "What needs you, soonest first." : `What became of the data of ${me.client_name ?? "this client"}.`}>
      {me.client_id === null && <Counts />}
      <Waiting />
      {can("read") && (
        <div className="pair">
          <StuckRuns />
          <WorkersAway />
        </div>
      )}
      {me.client_id !== null && <Holder name={me.client_name ?? ""} />}
    </Page>
  );
}

function Counts() {
  const federation = useFederation();
  const query = useQuery({ queryKey: ["federation", federation, "counts"], queryFn: () => requestCounts(federation) });
  const soon = new Date(now() + 7 * 86_400_000).toISOString();
  if (query.error) return null;
  const today = new Date(now()).toISOString();
  return (
    <ul className="tiles">
      <Tile number={query.data?.awaiting_my_approval} word="await my approval" search={{ awaiting_my_approval: true }} />
      <Tile number={query.data?.by_status.requires_action ?? (query.data ? 0 : undefined)} word="require action" search={{ status: ["requires_action"] }} />
      <Tile number={query.data?.overdue} word="overdue" search={{ status: OPEN, due_before: today, sort: "deadline" }} />
      <Tile number={query.data?.due_within_7_days} word="due within 7 days" search={{ status: OPEN, due_before: soon, sort: "deadline" }} />
    </ul>
  );
}

function Tile({ number, word, search }: { number?: number; word: string; search: object }) {
  return (
    <li>
      <Link to="/requests" search={search as never} className={number ? "tile loud" : "tile"}>
        <strong>{number === undefined ? "…" : count(number)}</strong> <span>{word}</span>
      </Link>
    </li>
  );
}

function Waiting() {
  const federation = useFederation();
  const me = useMe();
  const query = useQuery({
    queryKey: ["federation", federation, "waiting"],
    queryFn: () => requests(federation, { status: me.client_id === null ? OPEN : undefined, sort: "deadline" }),
  });
  const items = [...(query.data?.items ?? [])].sort((a, b) => rank(a) - rank(b));
  return (
    <Card title={me.client_id === null ? "Open requests by deadline" : "Requests about my data"}>
      <Awaiting query={query}>
        <div className="inbox-list">
        <Table
          label="Open requests"
          columns={[...REQUEST_COLUMNS.slice(0, 4), { name: "What helps", cell: (one: ErasureRequest) => <Helps one={one} /> }]}
          rows={items}
          keyOf={(one) => one.id}
          empty={<Empty command="lethe erase preview --client NAME">No request is open. To see what forgetting a client would take:</Empty>}
        />
        </div>
      </Awaiting>
    </Card>
  );
}

/** Those that wait for me come first, then those that are stuck; within them the deadline decides. */
function rank(one: ErasureRequest): number {
  const group = one.approvable_by_me ? 0 : one.status === "requires_action" ? 1 : 2;
  return group * 1e15 + new Date(one.legal_deadline).getTime();
}

function Helps({ one }: { one: ErasureRequest }) {
  if (one.approvable_by_me)
    return (
      <Link to="/requests/$id" params={{ id: one.id }}>
        Approve or deny
      </Link>
    );
  if (one.status === "awaiting_approval") return <>Somebody else decides</>;
  if (one.status === "requires_action") return <span className="clip">{one.reason}</span>;
  if (one.status === "completed")
    return (
      <Link to="/requests/$id/certificate" params={{ id: one.id }}>
        Certificate
      </Link>
    );
  return <>{one.reason ?? "Nothing: it goes on by itself"}</>;
}

const MOST_LOOKED_AT = 12;

/** Runs that are paused, that say why they stand still, and that have asked workers which are away. */
function StuckRuns() {
  const federation = useFederation();
  const query = useQuery({
    queryKey: ["federation", federation, "stuck"],
    queryFn: async () => {
      const [paused, running] = await Promise.all([runs(federation, "paused"), runs(federation, "running")]);
      return [...paused.items, ...running.items].sort((a, b) => Number(b.reason !== null) - Number(a.reason !== null));
    },
  });
  return (
    <Card title="Runs that wait for somebody">
      <Awaiting query={query}>
        <ul className="plain-list or-else">{query.data?.slice(0, MOST_LOOKED_AT).map((one: Run) => <Stuck key={one.id} run={one} />)}</ul>
        <div className="else">
          <Empty command="lethe runs list">No run waits for anybody.</Empty>
        </div>
      </Awaiting>
    </Card>
  );
}

function Stuck({ run }: { run: Run }) {
  const awaited = useAwaited(run.id, run.status === "running");
  if (run.status === "running" && run.reason === null && awaited.length === 0) return null;
  const names = awaited.slice(0, 3).map(({ task }) => task.client_name).join(", ");
  const why = run.reason ?? (awaited.length ? `It waits for ${names}${awaited.length > 3 ? ` and ${count(awaited.length - 3)} more` : ""}: away` : "");
  return (
    <li>
      <Link to="/runs/$id" params={{ id: run.id }}>
        {run.name}
      </Link>{" "}
      <Status of={run.status} /> <span className="note">{why}</span>
    </li>
  );
}

function WorkersAway() {
  const query = useWorkers();
  const away = query.data?.filter((one) => one.status === "away") ?? [];
  return (
    <Card title="Workers that are away">
      <Awaiting query={query}>
        {away.length === 0 ? (
          <Empty command="lethe clients list">Every worker that was ever here is here now.</Empty>
        ) : (
          <ul className="plain-list">
            {away.slice(0, 8).map((one) => (
              <li key={one.client_id}>
                <Link to="/workers" search={{ client: one.client_id }}>
                  {one.client_name}
                </Link>{" "}
                <span className="note">last seen {ago(one.last_seen_at)}</span>
              </li>
            ))}
            {away.length > 8 && (
              <li>
                <Link to="/workers" search={{ status: "away" }}>
                  and {count(away.length - 8)} more
                </Link>
              </li>
            )}
          </ul>
        )}
      </Awaiting>
    </Card>
  );
}

function Holder({ name }: { name: string }) {
  return (
    <Card title="Withdraw">
      <p>
        Everything that <strong>{name}</strong> contributed can be forgotten. You see what that takes before you decide, and get a
        certificate at the end.
      </p>
      <p>
        <Link to="/requests/new" search={{ subject: [name] }} className="button">
          Ask to be forgotten
        </Link>
      </p>
    </Card>
  );
}

