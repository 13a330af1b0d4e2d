/** Runs side by side: how well, at what cost, and what forgetting cost them. */
import { useState } from "react";
import { useQueries, useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { requests, runs, series, type ErasureRequest, type Run, type RunSeries } from "../api/operations";
import { everything } from "../api/pages";
import { useFederation } from "../federation";
import { Awaiting, Card, Empty, Field, Loading, Page, Status, Switch, Trouble } from "../parts/basics";
import { Chart } from "../parts/chart";
import { linesOf, marksOf, SHOWN, titleOf, unitOf, type Over } from "../parts/series";
import { SmallTable } from "../parts/table";
import { bytes, count, rounds, seconds, share } from "../words";

const route = getRouteApi("/inside/compare");
const FEW = 12;
type Filter = { run?: string[]; metric?: string; over?: Over };

export function Compare() {
  const federation = useFederation();
  const { run: chosen = [], metric = "accuracy", over = "round" } = route.useSearch() as Filter;
  const navigate = route.useNavigate();
  const [wanted, setWanted] = useState("");
  const list = useQuery({ queryKey: ["federation", federation, "runs", "all"], queryFn: () => everything((cursor) => runs(federation, undefined, cursor), 1000) });
  const change = (part: Filter) => void navigate({ search: (before: object) => ({ ...before, ...part }) as never, replace: true });
  const toggle = (id: string) => change({ run: chosen.includes(id) ? chosen.filter((one) => one !== id) : [...chosen, id] });
  const compared = (list.data ?? []).filter((one) => chosen.includes(one.id));
  const offered = (list.data ?? []).filter((one) => chosen.includes(one.id) || one.name.includes(wanted)).sort((a, b) => Number(chosen.includes(b.id)) - Number(chosen.includes(a.id)));
  return (
    <Page title="Compare runs" note="The address of this page holds the choice: send it to somebody.">
      <Awaiting query={list}>
        {list.data?.length === 0 ? (
          <Empty command="lethe runs create run.yaml --watch">There is no run yet. To begin one:</Empty>
        ) : (
          <>
          {(list.data?.length ?? 0) > FEW && (
            <div className="filters">
              <Field label="Find a run">{(id) => <input id={id} type="search" value={wanted} onChange={(event) => setWanted(event.target.value)} />}</Field>
            </div>
          )}
          <fieldset className="choice">
            <legend>Runs</legend>
            <div className="choice-list">
              {offered.map((one) => (
                <label key={one.id} className="check">
                  <input type="checkbox" checked={chosen.includes(one.id)} onChange={() => toggle(one.id)} /> <span className="clip" title={one.name}>{one.name}</span> <Status of={one.status} />
                </label>
              ))}
            </div>
          </fieldset>
          </>
        )}
      </Awaiting>
      <form className="filters" aria-label="What to draw" onSubmit={(event) => event.preventDefault()}>
        <Field label="Figure">
          {(id) => (
            <select id={id} value={metric} onChange={(event) => change({ metric: event.target.value })}>
              {SHOWN.map((name) => <option key={name} value={name}>{titleOf(name)}</option>)}
            </select>
          )}
        </Field>
        <Switch label="Over" options={[["round", "Rounds"], ["time", "Time"]]} now={over} onChange={(next) => change({ over: next })} />
      </form>
      {compared.length === 0 ? <Empty>Choose two runs or more.</Empty> : <Compared runs={compared} metric={metric} over={over} />}
    </Page>
  );
}

function Compared({ runs: compared, metric, over }: { runs: Run[]; metric: string; over: Over }) {
  const federation = useFederation();
  const found = useQueries({ queries: compared.map((one) => ({ queryKey: ["run", one.id, "series"], queryFn: () => series(one.id, SHOWN) })) });
  const asked = useQuery({ queryKey: ["federation", federation, "requests", "all"], queryFn: () => everything((cursor) => requests(federation, {}, cursor), 1000) });
  const failed = found.find((one) => one.error);
  const pairs = compared.map((run, i) => ({ run, series: found[i].data }));
  const known = pairs.filter((one): one is { run: Run; series: RunSeries } => one.series !== undefined);
  const lines = known.flatMap(({ run, series }) => linesOf(series.metrics.filter((one) => one.name === metric), over, `${run.name}: `));
  const marks = known.flatMap(({ run, series }) => marksOf(series, over).map((mark) => ({ ...mark, label: `${run.name}, ${mark.label}` })));
  return (
    <>
      <Trouble error={failed?.error} />
      <Card title={titleOf(metric)}>
        {found.some((one) => one.isPending) ? <Loading /> : lines.length === 0 ? <Empty>Nothing of it was measured.</Empty> : <Chart label={titleOf(metric)} unit={known[0] ? unitOf(known[0].series, metric) : ""} over={over} lines={lines} marks={marks} />}
      </Card>
      <Card title="Cost and outcome">
        <SmallTable
          label="Cost and outcome"
          head={["Run", "Status", "Rounds", "Accuracy", "Time in rounds", "Bytes received", "Fences"]}
          rows={pairs.map(({ run, series }) => [
            <Link key="r" to="/runs/$id" params={{ id: run.id }}>{run.name}</Link>, <Status key="s" of={run.status} />, rounds(run.round, run.rounds_planned),
            share(run.accuracy), seconds(sum(series, "seconds")), bytes(sum(series, "bytes_received")), count(series?.fences.length),
          ])}
        />
      </Card>
      <Card title="Forgetting">
        <Forgetting runs={compared} requests={asked.data ?? []} />
      </Card>
    </>
  );
}

/** Thinned series cannot be added up: then nothing is said. */
function sum(found: RunSeries | undefined, name: string): number | null {
  const all = found?.metrics.filter((one) => one.name === name) ?? [];
  if (all.length === 0 || all.some((one) => one.total !== one.points.length)) return null;
  return all.flatMap((one) => one.points).reduce((total, point) => total + point.value, 0);
}

function Forgetting({ runs: compared, requests: all }: { runs: Run[]; requests: ErasureRequest[] }) {
  const elapsed = (from: string | null, to: string | null) => (from && to ? (new Date(to).getTime() - new Date(from).getTime()) / 1000 : null);
  const rows = compared.flatMap((run) =>
    all.flatMap((request) => {
      const lines = request.lines.filter((line) => line.run_id === run.id);
      if (lines.length === 0) return [];
      const last = (times: (string | null)[]) => (times.every(Boolean) ? times.sort().at(-1)! : null);
      return [[
        run.name, <Link key="q" to="/requests/$id" params={{ id: request.id }}>{request.subjects.join(", ")}</Link>, request.chosen ?? request.method, lines.length,
        seconds(elapsed(request.fenced_at, last(lines.map((line) => line.clean_at)))), seconds(elapsed(request.fenced_at, last(lines.map((line) => line.done_at)))),
      ]];
    }),
  );
  if (rows.length === 0) return <Empty command="lethe erase preview --client NAME">Nobody was forgotten in these runs. To see what it would take:</Empty>;
  return <SmallTable label="Forgetting" head={["Run", "Forgotten", "Method", "Cohorts touched", "Until clean", "Until recovered"]} rows={rows} />;
}
