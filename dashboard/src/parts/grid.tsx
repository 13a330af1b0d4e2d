/** Who did what in which round. It is a table, so that it needs no other. */
import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { grid, type GridRow } from "../api/operations";
import { Awaiting, Empty } from "./basics";
import { Icon, type IconName } from "./icon";
import { Table, type Column } from "./table";

const route = getRouteApi("/inside/runs/$id");
const WINDOW = 40;
const CELLS: Record<string, [icon: IconName | null, tone: string, word: string]> = {
  d: ["check", "good", "done"], l: ["clock", "unsure", "late"], f: ["cross", "bad", "failed"], r: ["fence", "quiet", "revoked"],
  o: ["work", "busy", "open"], "-": [null, "nothing", "not asked"],
};

export function RoundsGrid({ id }: { id: string }) {
  const { from } = route.useSearch() as { from?: string };
  const navigate = route.useNavigate();
  const first = from === undefined ? undefined : Math.max(1, Number(from) || 1);
  const query = useQuery({
    queryKey: ["run", id, "grid", first],
    queryFn: () => grid(id, first, first === undefined ? undefined : first + WINDOW - 1),
    placeholderData: (before) => before,
  });
  const found = query.data;
  const show = (round: number | undefined) => void navigate({ search: (before: object) => ({ ...before, from: round }) as never, replace: true });
  const [oldest, newest] = [found?.rounds[0] ?? 1, found?.rounds.at(-1) ?? 1];
  const columns: Column<GridRow>[] = [
    { name: "Client", cell: (row) => <Link to="/workers" search={{ client: row.client_id }} className="clip narrow-clip" title={row.name}>{row.name}</Link> },
    ...(found?.rounds ?? []).map((round, i): Column<GridRow> => ({ name: String(round), cell: (row) => <Cell code={row.cells[i]} words={found?.codes} /> })),
  ];
  return (
    <Awaiting query={query}>
      {found && (found.clients.length === 0 || found.rounds.length === 0 ? (
        <Empty command="lethe runs show NAME">No client was asked for anything yet.</Empty>
      ) : (
        <>
          <div className="actions">
            <button type="button" disabled={oldest <= 1} onClick={() => show(Math.max(1, oldest - WINDOW))}>Earlier rounds</button>
            <button type="button" disabled={from === undefined} onClick={() => show(newest + 1)}>Later rounds</button>
            <button type="button" disabled={from === undefined} onClick={() => show(undefined)}>Newest</button>
            <ul className="legend" aria-label="Signs">
              {Object.keys(found.codes).map((code) => <li key={code}><Cell code={code} words={found.codes} /> {found.codes[code]}</li>)}
            </ul>
          </div>
          <div className="cells"><Table label={`Clients and rounds ${oldest} to ${newest}`} columns={columns} rows={found.clients} keyOf={(row) => row.client_id} /></div>
          {found.left_off > 0 && <p className="note">{found.left_off} further clients are not shown.</p>}
        </>
      ))}
    </Awaiting>
  );
}

function Cell({ code, words }: { code: string; words?: Record<string, string> }) {
  const [icon, tone, word] = CELLS[code] ?? ["question", "quiet", words?.[code] ?? code];
  return (
    <span className={`cell ${tone}`} role="img" aria-label={word} title={words?.[code] ?? word}>
      {icon && <Icon of={icon} />}
    </span>
  );
}
