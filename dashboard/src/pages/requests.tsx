/** All requests to forget, by what one looks for. */
import { useState } from "react";
import { getRouteApi, Link } from "@tanstack/react-router";
import { requests, type RequestFilter } from "../api/operations";
import { everything, usePages } from "../api/pages";
import { csv, download } from "../csv";
import { useFederation } from "../federation";
import { Empty, Field, Page, Trouble } from "../parts/basics";
import { GROUNDS, nameOf, OPEN, OVER, REQUEST_COLUMNS } from "../parts/requests";
import { Table } from "../parts/table";
import { useMe, useSession } from "../session";
import { sentence } from "../words";

const route = getRouteApi("/inside/requests");

export function Requests() {
  const federation = useFederation();
  const me = useMe();
  const { can } = useSession();
  const { federation: _, ...filter } = route.useSearch() as RequestFilter & { federation?: string };
  const list = usePages(["federation", federation, "requests", filter], (cursor) => requests(federation, filter, cursor));
  const mayFile = can("file") || me.client_id !== null;
  return (
    <Page
      title="Requests"
      note="Requests to forget. The address of this page holds the filters: send it to somebody."
      actions={
        <>
          <Export federation={federation} filter={filter} />
          {mayFile && (
            <Link to="/requests/new" className="button primary">
              New request
            </Link>
          )}
        </>
      }
    >
      <Filters filter={filter} />
      <Table
        label="Requests to forget"
        columns={REQUEST_COLUMNS}
        rows={list.items}
        keyOf={(one) => one.id}
        isLoading={list.isLoading}
        error={list.error}
        retry={list.retry}
        more={list.more}
        isMore={list.isMore}
        sort={filter.sort ?? "-created"}
        onSort={useChange("sort")}
        empty={<Empty command="lethe erase --client NAME">No request fits the filters. To file one:</Empty>}
      />
    </Page>
  );
}

function useChange(name: keyof RequestFilter) {
  const navigate = route.useNavigate();
  return (value: unknown) =>
    void navigate({ search: (before: object) => ({ ...before, [name]: value || undefined }) as never, replace: true });
}

function Filters({ filter }: { filter: RequestFilter }) {
  const [setStatus, setSubject, setRun, setDue, setMine] = [
    useChange("status"), useChange("subject"), useChange("run"), useChange("due_before"), useChange("awaiting_my_approval"),
  ];
  const status = filter.status?.join(",") ?? "";
  return (
    <form className="filters" aria-label="Filters" onSubmit={(event) => event.preventDefault()}>
      <Field label="Status">
        {(id) => (
          <select id={id} value={status} onChange={(event) => setStatus(event.target.value ? event.target.value.split(",") : undefined)}>
            <option value="">all</option>
            <option value={OPEN.join(",")}>open</option>
            <option value={OVER.join(",")}>over</option>
            {[...OPEN, ...OVER].map((one) => (
              <option key={one} value={one}>
                {sentence(one)}
              </option>
            ))}
          </select>
        )}
      </Field>
      <Field label="Client">
        {(id) => <Later id={id} value={filter.subject ?? ""} onChange={setSubject} />}
      </Field>
      <Field label="Run">{(id) => <Later id={id} value={filter.run ?? ""} onChange={setRun} />}</Field>
      <Field label="Due before">
        {(id) => (
          <input
            id={id}
            type="date"
            value={filter.due_before?.slice(0, 10) ?? ""}
            onChange={(event) => setDue(event.target.value ? `${event.target.value}T00:00:00Z` : undefined)}
          />
        )}
      </Field>
      <label className="check">
        <input type="checkbox" checked={filter.awaiting_my_approval ?? false} onChange={(event) => setMine(event.target.checked)} />
        Awaiting my approval
      </label>
    </form>
  );
}

/** A text that counts once it is whole: when Enter is pressed or the field is left. */
function Later({ id, value, onChange }: { id: string; value: string; onChange: (value: string) => void }) {
  const [typed, setTyped] = useState(value);
  return (
    <input
      id={id}
      type="search"
      value={typed}
      onChange={(event) => setTyped(event.target.value)}
      onBlur={() => onChange(typed.trim())}
      onKeyDown={(event) => event.key === "Enter" && onChange(typed.trim())}
    />
  );
}

const HEADER = [
  "request", "ticket", "status", "forget", "scope", "ground", "regulation", "method", "guarantee", "filed_at", "filed_by",
  "decision", "decided_by", "decided_at", "decision_reason", "deadline", "days_left", "fenced_at", "first_clean_at", "completed_at",
];

function Export({ federation, filter }: { federation: string; filter: RequestFilter }) {
  const [error, setError] = useState<unknown>(null);
  const write = async () => {
    setError(null);
    try {
      const all = await everything((cursor) => requests(federation, filter, cursor));
      const rows = all.map((one) => [
        one.id, one.external_ref, one.status, one.subjects.join("; "), one.scope, one.ground ? GROUNDS[one.ground] : "", one.regulation,
        one.chosen ?? one.method, one.guarantee, one.created_at, one.filed_by ? nameOf(one.filed_by) : one.requested_by, one.decision,
        one.decided_by ? nameOf(one.decided_by) : "", one.decided_at, one.decision_reason, one.legal_deadline, one.days_left,
        one.fenced_at, one.first_clean_at, one.completed_at,
      ]);
      download("requests.csv", csv(HEADER, rows), "text/csv");
    } catch (problem) {
      setError(problem);
    }
  };
  return (
    <>
      <button type="button" onClick={() => void write()}>
        Save as CSV
      </button>
      <Trouble error={error} />
    </>
  );
}
