/** The cohorts of a run as a picture: an influence tree, clusters in KNOT's plane, or packed circles; with the path that
 * an erasure fenced, and what began again. */
import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { run, topology, type RunTopology, type TopologyCohort } from "../api/operations";
import { Awaiting, Card, Empty, Facts, Field, Page, Switch } from "../parts/basics";
import { Clusters } from "../parts/clusters";
import { erasuresOf, nameOfCohort, STATES, stateOf, story, type Look } from "../parts/cohort-words";
import { Plane } from "../parts/plane";
import { Picture } from "../parts/table";
import { Tree } from "../parts/tree";
import { count, counted, day, moment, share, short } from "../words";

const route = getRouteApi("/inside/runs/$id/cohorts");

type Filter = { client?: string; request?: string; at?: "before" | "after" };

export function Cohorts() {
  const { id } = route.useParams();
  const { client, request, at = "after" } = route.useSearch() as Filter;
  const navigate = route.useNavigate();
  const query = useQuery({ queryKey: ["run", id, "topology"], queryFn: () => topology(id) });
  const about = useQuery({ queryKey: ["run", id], queryFn: () => run(id) });
  const [chosen, setChosen] = useState<string | null>(null);
  const found = query.data;
  const one = found?.cohorts.find((cohort) => cohort.id === chosen) ?? null;
  const erasures = found ? erasuresOf(found) : [];
  const look: Look = { erasure: erasures.find((erasure) => erasure.id === request)?.id ?? erasures[0]?.id ?? null, isBefore: at === "before" };
  const change = (part: Filter) => void navigate({ search: (before: object) => ({ ...before, ...part }) as never, replace: true });
  return (
    <Page
      title={`Cohorts of ${about.data?.name ?? "the run"}`}
      note={found && <>{counted(found.cohorts.length, "cohort")}, {counted(erasures.length, "erasure")}. <Link to="/runs/$id" params={{ id }}>The run</Link></>}
    >
      <form className="filters" aria-label="Filters" onSubmit={(event) => event.preventDefault()}>
        <Field label="Find a client">
          {(at) => <input id={at} type="search" value={client ?? ""} onChange={(event) => change({ client: event.target.value || undefined })} />}
        </Field>
        {look.erasure !== null && (
          <>
            <Field label="Erasure">
              {(at) => (
                <select id={at} value={look.erasure ?? ""} onChange={(event) => change({ request: event.target.value })}>
                  {erasures.map((erasure) => <option key={erasure.id} value={erasure.id}>{`request ${short(erasure.id)}, ${day(erasure.at)}`}</option>)}
                </select>
              )}
            </Field>
            <Switch label="Show the cohorts" options={[["before", "Before the fence"], ["after", "After it"]]} now={at} onChange={(next) => change({ at: next })} />
          </>
        )}
      </form>
      <Awaiting query={query}>
        {found && found.cohorts.length === 0 && <Empty command="lethe runs show NAME">The run has not formed its cohorts yet.</Empty>}
        {found && found.cohorts.length > 0 && (
          <div className="with-side">
            <Card>
              <p className="story" role="status">{story(found, look)}</p>
              <Picture label="Cohorts" head={["Cohort", "Kind", "Members", "Epoch", "Round", "Phase", "Accuracy", look.isBefore ? "Before the erasure" : "After the erasure"]} rows={rowsOf(found, look)}>
                <Drawing found={found} look={look} chosen={chosen} wanted={client ?? ""} onChoose={setChosen} />
              </Picture>
            </Card>
            <Card title={one ? `Cohort ${nameOfCohort(one)}` : "A cohort"}>{one ? <Details one={one} /> : <p className="note">Choose one in the picture: its members, its model and its fences are shown here.</p>}</Card>
          </div>
        )}
      </Awaiting>
    </Page>
  );
}

export type DrawingProps = { found: RunTopology; look: Look; chosen: string | null; wanted: string; onChoose: (id: string) => void };

function Drawing(props: DrawingProps) {
  if (props.found.cohorts.some((one) => one.parent_id !== null)) return <Tree {...props} />;
  return props.found.plane && props.found.cohorts.some((one) => one.place !== null) ? <Plane {...props} /> : <Clusters {...props} />;
}

function rowsOf(found: RunTopology, look: Look) {
  return found.cohorts.map((one) => [one.name ?? "named after an erased client", one.kind, count(one.num_members), one.epoch, one.round, one.phase, share(one.accuracy), STATES[stateOf(one, look)].means]);
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
