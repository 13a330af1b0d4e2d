/** The cohorts of a run as a picture: an influence tree, clusters in KNOT's plane, or packed circles; with the path that
 * an erasure fenced, and what began again. */
import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { run, topology, type RunTopology, type TopologyCohort } from "../api/operations";
import { Awaiting, Card, Empty, Facts, Field, Page } from "../parts/basics";
import { Clusters } from "../parts/clusters";
import { Plane } from "../parts/plane";
import { Picture } from "../parts/table";
import { Tree } from "../parts/tree";
import { count, counted, moment, share, short } from "../words";

const route = getRouteApi("/inside/runs/$id/cohorts");

export function nameOfCohort(one: TopologyCohort): string {
  return one.name ?? "named after an erased client";
}

export function isFenced(one: TopologyCohort): boolean {
  return one.fences.length > 0;
}

export function Cohorts() {
  const { id } = route.useParams();
  const { client } = route.useSearch() as { client?: string };
  const navigate = route.useNavigate();
  const query = useQuery({ queryKey: ["run", id, "topology"], queryFn: () => topology(id) });
  const about = useQuery({ queryKey: ["run", id], queryFn: () => run(id) });
  const [chosen, setChosen] = useState<string | null>(null);
  const found = query.data;
  const one = found?.cohorts.find((cohort) => cohort.id === chosen) ?? null;
  return (
    <Page
      title={`Cohorts of ${about.data?.name ?? "the run"}`}
      note={found && <>{counted(found.cohorts.length, "cohort")}, {counted(found.cohorts.filter(isFenced).length, "fenced cohort")}. <Link to="/runs/$id" params={{ id }}>The run</Link></>}
    >
      <form className="filters" aria-label="Filters" onSubmit={(event) => event.preventDefault()}>
        <Field label="Find a client">
          {(at) => <input id={at} type="search" value={client ?? ""} onChange={(event) => void navigate({ search: (before: object) => ({ ...before, client: event.target.value || undefined }) as never, replace: true })} />}
        </Field>
      </form>
      <Awaiting query={query}>
        {found && found.cohorts.length === 0 && <Empty command="lethe runs show NAME">The run has not formed its cohorts yet.</Empty>}
        {found && found.cohorts.length > 0 && (
          <div className="with-side">
            <Card>
              <Picture label="Cohorts" head={["Cohort", "Kind", "Members", "Epoch", "Round", "Phase", "Accuracy", "Fences"]} rows={rowsOf(found)}>
                <Drawing found={found} chosen={chosen} wanted={client ?? ""} onChoose={setChosen} />
              </Picture>
            </Card>
            <Card title={one ? `Cohort ${nameOfCohort(one)}` : "A cohort"}>{one ? <Details one={one} /> : <p className="note">Choose one in the picture.</p>}</Card>
          </div>
        )}
      </Awaiting>
    </Page>
  );
}

export type DrawingProps = { found: RunTopology; chosen: string | null; wanted: string; onChoose: (id: string) => void };

function Drawing(props: DrawingProps) {
  if (props.found.cohorts.some((one) => one.parent_id !== null)) return <Tree {...props} />;
  return props.found.plane && props.found.cohorts.some((one) => one.place !== null) ? <Plane {...props} /> : <Clusters {...props} />;
}

function rowsOf(found: RunTopology) {
  return found.cohorts.map((one) => [nameOfCohort(one), one.kind, count(one.num_members), one.epoch, one.round, one.phase, share(one.accuracy), fencesOf(one)]);
}

function fencesOf(one: TopologyCohort): string {
  return one.fences.map((fence) => `${short(fence.erasure_id)}: epoch ${fence.epoch}${fence.reinitialised ? ", began again from clean cohorts" : ""}`).join("; ") || "–";
}

function Details({ one }: { one: TopologyCohort }) {
  return (
    <>
      <Facts
        of={[
          ["Kind", one.kind], ["Phase", one.phase], ["Epoch", one.epoch], ["Round", one.round], ["Accuracy", share(one.accuracy)],
          ["Serves", one.head ? <Link key="h" to="/checkpoints/$id" params={{ id: one.head }}>{one.head_digest ? short(one.head_digest) : "its model"}</Link> : "nothing"],
          ["Members", count(one.num_members)],
        ]}
      />
      <h3>Members</h3>
      <ul className="plain-list">
        {one.members.map((member) => <li key={member.client_id}><Link to="/workers" search={{ client: member.client_id }}>{member.name}</Link>{member.joined ? " (joined later)" : ""}</li>)}
        {one.members_left_off > 0 && <li className="note">and {count(one.members_left_off)} more</li>}
      </ul>
      <h3>Fences</h3>
      {one.fences.length === 0 ? <p className="note">None: no erasure touched it.</p> : (
        <ol>
          {one.fences.map((fence) => (
            <li key={fence.epoch}>
              <Link to="/requests/$id" params={{ id: fence.erasure_id }}>Request {short(fence.erasure_id)}</Link>, {moment(fence.at)}: epoch {fence.epoch - 1} → {fence.epoch}.{" "}
              {fence.reinitialised ? "It began again from the mean of clean cohorts inside it." : "It went on from its newest clean model, or began anew."}
            </li>
          ))}
        </ol>
      )}
    </>
  );
}
