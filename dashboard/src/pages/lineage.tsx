/** Whose updates are in a model, with which weights, and which models it comes from. */
import { useMemo } from "react";
import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { graphlib, layout } from "@dagrejs/dagre";
import { cohortNames, lineage, lineageEdges, type Lineage, type LineageEdges } from "../api/operations";
import { Awaiting, Card, Facts, Field, Page } from "../parts/basics";
import { clipped } from "../parts/cohort-words";
import { Icon, IconAt } from "../parts/icon";
import { Node } from "../parts/node";
import { Picture, Table } from "../parts/table";
import { accuracyOf, bytes, count, counted, figure, moment, share, short } from "../words";

const route = getRouteApi("/inside/checkpoints/$id");
const MOST_UPDATES = 14;
const DEPTH = 4;
const MOST_NAMES = 100;
const NOBODY: Names = new Map();

export function LineageOf() {
  const { id } = route.useParams();
  const { client = "" } = route.useSearch() as { client?: string };
  const navigate = route.useNavigate();
  const query = useQuery({ queryKey: ["lineage", id], queryFn: () => lineage(id) });
  const edges = useQuery({ queryKey: ["lineage", id, "edges"], queryFn: () => lineageEdges(id, DEPTH) });
  const found = query.data;
  const one = found?.checkpoint;
  const names = useQuery({ queryKey: ["run", one?.run_id, "cohort-names"], queryFn: () => cohortNames(one!.run_id), enabled: one !== undefined });
  const rows = (found?.contributions ?? []).filter((part) => !client || part.client_name.includes(client));
  return (
    <Page title={one ? `Model of ${one.cohort}, round ${one.round}` : "Model"} note={one && <Link to="/runs/$id" params={{ id: one.run_id }} search={{ tab: "models" } as never}>The run</Link>}>
      <Awaiting query={query}>
        {found && one && (
          <>
            <div className="pair">
              <Card title="The model">
                <Facts
                  of={[
                    ["Digest", <code key="d" className="wrap">{one.digest}</code>], ["Made", moment(one.created_at)], ["Made by", found.made_by], ["Epoch", one.epoch],
                    ["Accuracy", share(accuracyOf(one.metrics))], ["Size", one.stored ? bytes(one.bytes) : "deleted"],
                    ["Served", one.superseded_by ? <Link key="e" to="/requests/$id" params={{ id: one.superseded_by }}>not since request {short(one.superseded_by)}</Link> : one.is_head ? "now" : "before"],
                    ["Ancestors", count(found.ancestors.length)],
                  ]}
                />
              </Card>
              <Card title={`Whose data is in it: ${counted(found.clients.length, "client")}`}>
                <p className="wrap names" tabIndex={0}>{found.clients.slice(0, MOST_NAMES).join(", ") || "Nobody’s."}{found.clients.length > MOST_NAMES ? ` and ${count(found.clients.length - MOST_NAMES)} more` : ""}</p>
              </Card>
            </div>
            <Card title="How it came to be">
              <Drawing found={found} edges={edges.data} client={client} cohorts={names.data ?? NOBODY} />
            </Card>
            <Card title="Updates in this step">
              <form className="filters" aria-label="Filters" onSubmit={(event) => event.preventDefault()}>
                <Field label="Find a client">{(at) => <input id={at} type="search" value={client} onChange={(event) => void navigate({ search: (before: object) => ({ ...before, client: event.target.value || undefined }) as never, replace: true })} />}</Field>
              </form>
              <Table
                label="Updates"
                rows={rows}
                keyOf={(part) => part.update_id}
                columns={[
                  { name: "Client", cell: (part) => part.client_name },
                  { name: "Weight", isNumber: true, cell: (part) => figure(part.weight) },
                  { name: "Samples", isNumber: true, cell: (part) => count(part.num_samples) },
                  { name: "Staleness", isNumber: true, cell: (part) => part.staleness },
                  { name: "Scaled by", isNumber: true, cell: (part) => (part.factor == null ? "–" : figure(part.factor)) },
                  { name: "Update", cell: (part) => <code>{short(part.digest)}</code> },
                  { name: "Stored", cell: (part) => (part.stored ? "yes" : "deleted") },
                ]}
              />
            </Card>
          </>
        )}
      </Awaiting>
    </Page>
  );
}

type Box = { id: string; label: string; detail: string; kind: "model" | "update"; isFenced: boolean };
type Arrow = { from: string; to: string; label: string };

const MADE = { init: "begun", aggregate: "trained", reinit: "begun again", merge: "merged", forgotten: "unlearned" };
type Names = ReadonlyMap<string, string>;

function graphOf(found: Lineage, edges: LineageEdges | undefined, client: string, names: Names): { boxes: Box[]; arrows: Arrow[]; left: number } {
  const own = found.checkpoint;
  const boxes = new Map<string, Box>([[own.id, { id: own.id, label: own.cohort, detail: `round ${own.round}`, kind: "model", isFenced: own.superseded_by !== null }]]);
  const arrows: Arrow[] = [];
  for (const node of edges?.nodes ?? [])
    if (node.checkpoint_id !== own.id)
      boxes.set(node.checkpoint_id, { id: node.checkpoint_id, label: node.cohort_id === own.cohort_id ? own.cohort : (names.get(node.cohort_id) ?? "another cohort"), detail: `${MADE[node.kind]}, round ${node.round}`, kind: "model", isFenced: node.superseded_by !== null });
  for (const edge of edges?.edges ?? [])
    if (edge.kind === "parent" && boxes.has(edge.from) && boxes.has(edge.to)) arrows.push({ from: edge.from, to: edge.to, label: edge.weight == null ? "" : figure(edge.weight) });
  const parts = found.contributions.filter((one) => !client || one.client_name.includes(client)).sort((a, b) => b.weight - a.weight);
  for (const part of parts.slice(0, MOST_UPDATES)) {
    boxes.set(part.update_id, { id: part.update_id, label: part.client_name, detail: `weight ${figure(part.weight)}`, kind: "update", isFenced: false });
    arrows.push({ from: part.update_id, to: own.id, label: figure(part.weight) });
  }
  return { boxes: [...boxes.values()], arrows, left: Math.max(0, parts.length - MOST_UPDATES) };
}

/** `leaf:clinic-a` for people. */
const plain = (name: string) => name.replace(/^leaf:/, "").replace(/^node:(.{6}).*$/, "node $1");
const [WIDTH, HEIGHT] = [150, 38];

function Drawing({ found, edges, client, cohorts }: { found: Lineage; edges: LineageEdges | undefined; client: string; cohorts: Names }) {
  const go = useNavigate();
  const drawn = useMemo(() => {
    const { boxes, arrows, left } = graphOf(found, edges, client, cohorts);
    const graph = new graphlib.Graph();
    graph.setGraph({ rankdir: "LR", nodesep: 12, ranksep: 70, marginx: 6, marginy: 6 });
    graph.setDefaultEdgeLabel(() => ({}));
    boxes.forEach((box) => graph.setNode(box.id, { width: WIDTH, height: HEIGHT }));
    arrows.forEach((arrow) => graph.setEdge(arrow.from, arrow.to));
    layout(graph);
    const size = graph.graph() as { width: number; height: number };
    return { boxes: boxes.map((box) => ({ ...box, ...graph.node(box.id) })), arrows: arrows.map((arrow) => ({ ...arrow, points: graph.edge(arrow.from, arrow.to).points })), left, ...size };
  }, [found, edges, client, cohorts]);
  const names = new Map(drawn.boxes.map((box) => [box.id, `${box.label}, ${box.detail}`]));
  return (
    <Picture label="Lineage" head={["From", "To", "Weight"]} rows={drawn.arrows.map((arrow) => [names.get(arrow.from), names.get(arrow.to), arrow.label || "–"])}>
      <div className="drawing" tabIndex={0} role="region" aria-label="Lineage">
        <svg viewBox={`0 0 ${drawn.width} ${drawn.height}`} style={{ maxWidth: drawn.width, minWidth: Math.min(drawn.width, 760) }} role="group" aria-label="Models and updates">
          {drawn.arrows.map((arrow) => (
            <g key={`${arrow.from}-${arrow.to}`}>
              <path className="edge" d={`M${arrow.points.map((point: { x: number; y: number }) => `${point.x},${point.y}`).join("L")}`} />
            </g>
          ))}
          {drawn.boxes.map((box) => (
            <Node key={box.id} x={box.x} y={box.y} label={`${box.label}, ${box.detail}${box.isFenced ? ", not served any more" : ""}`} className={`${box.isFenced ? "retired" : ""} ${box.kind} ${box.id === found.checkpoint.id ? "chosen" : ""}`} onChoose={() => box.kind === "model" && void go({ to: "/checkpoints/$id", params: { id: box.id } })}>
              <rect x={-WIDTH / 2} y={-HEIGHT / 2} width={WIDTH} height={HEIGHT} rx={box.kind === "update" ? 19 : 6} />
              <text x={14 - WIDTH / 2} y={-3} className="name">{clipped(plain(box.label), box.isFenced ? 15 : 17)}</text>
              <text x={14 - WIDTH / 2} y={12} className="small">{box.detail}</text>
              {box.isFenced && <IconAt of="fence" x={WIDTH / 2 - 15} y={0} />}
            </Node>
          ))}
        </svg>
      </div>
      <ul className="legend">
        <li><span className="swatch-box" /> a model; choose it to go there</li>
        <li><span className="swatch-box update" /> an update of a client, with its weight</li>
        {drawn.boxes.some((box) => box.isFenced) && <li><span className="swatch-box retired"><Icon of="fence" /></span> not served since an erasure</li>}
        {drawn.left > 0 && <li>{counted(drawn.left, "further update")} in the table below</li>}
      </ul>
    </Picture>
  );
}
