/** The operations that pages use, with what they answer; the generated client does the work. */
import * as sdk from "lethe-client";
import type { ErasureRequest as FiledRequest, Federation as FederationV1 } from "lethe-client";
import { call, problemOf, request, useToken } from "./client";

export type * from "lethe-client";

// --- what the contract gains -------------------------------------------------------------------------------------------

export type Me = {
  credential_id: string;
  role: string;
  label: string | null;
  federation_id: string | null;
  client_id: string | null;
  client_name: string | null;
  person: string | null;
  session: boolean;
  expires_at: string | null;
  can: string[];
};
export type Actor = { credential_id: string; label: string | null; role: string; person: string | null };
export type ErasureRequest = FiledRequest & {
  ground?: string | null;
  external_ref?: string | null;
  filed_by?: Actor | null;
  decided_by?: Actor | null;
  decided_at?: string | null;
  decision?: "approved" | "denied" | null;
  decision_reason?: string | null;
  needs_approval?: boolean;
  approvable_by_me?: boolean;
  extension?: { until: string; reason: string; at: string; by: Actor } | null;
};
export type Federation = FederationV1 & { four_eyes?: "off" | "asked" | "all" };
export type Note = { id: string; at: string; by: Actor | null; text: string | null };
export type Counts = {
  total: number;
  by_status: Record<string, number>;
  awaiting_my_approval: number;
  overdue: number;
  due_within_7_days: number;
};
export type CohortFence = { erasure_id: string; at: string | null; epoch: number; reinitialised: boolean };
export type Place = { time: number; disparity: number };
export type TopologyCohort = {
  id: string;
  name: string | null;
  kind: "line" | "root" | "inner" | "leaf" | "profile" | "merge";
  parent_id: string | null;
  group: string | null;
  epoch: number;
  round: number;
  phase: string;
  num_members: number;
  members: { client_id: string; name: string; joined: boolean }[];
  members_left_off: number;
  head: string | null;
  head_digest: string | null;
  accuracy: number | null;
  fences: CohortFence[];
  place: Place | null;
};
export type RunTopology = {
  run_id: string;
  kind: "flat" | "tree" | "bi_model" | "isolated" | "clusters";
  version: number;
  cohorts: TopologyCohort[];
  plane: { anchors: (Place & { cluster: number })[]; time_range: number[]; disparity_range: number[] } | null;
};
export type SeriesPoint = { round: number; at: string; value: number; epoch: number };
export type Series = {
  name: string;
  cohort_id: string;
  cohort_name: string | null;
  unit: string;
  total: number;
  points: SeriesPoint[];
};
export type SeriesFence = { at: string | null; round: number; erasure_id: string; cohort_ids: string[] };
export type RunSeries = { run_id: string; metrics: Series[]; fences: SeriesFence[]; cohorts_left_off: number };
export type GridRow = { client_id: string; name: string; cells: string[] };
export type RunGrid = {
  rounds: number[];
  clients: GridRow[];
  codes: Record<string, string>;
  left_off: number;
  next_cursor?: string | null;
};
export type Worker = {
  client_id: string;
  client_name: string;
  status: "waiting" | "working" | "away" | "never";
  last_seen_at: string | null;
  device: sdk.Device | null;
  version: string | null;
  task_in_hand: { task_id: string; run_id: string; kind: string; round: number; since: string | null; progress: number } | null;
  last_failure: { task_id: string; run_id: string; round: number; reason: string } | null;
  bytes_received: number;
  tasks_done: number;
};
export type SigningKey = { key_id: string; public_key: string; algorithm: string; from: string | null; until: string | null };
export type LineageNode = {
  checkpoint_id: string;
  cohort_id: string;
  epoch: number;
  round: number;
  kind: string;
  depth: number;
  superseded_by: string | null;
};
export type LineageEdge = {
  from: string;
  to: string;
  kind: "parent" | "update";
  client_id: string | null;
  weight: number | null;
  num_samples: number | null;
};
export type LineageEdges = {
  checkpoint_id: string;
  nodes: LineageNode[];
  edges: LineageEdge[];
  nodes_left_off: boolean;
  edges_left_off: number;
};
export type System = {
  version: string;
  started_at: string;
  database: { kind: string; revision: string | null; ok: boolean };
  redis: { ok: boolean } | null;
  blobs: { kind: string; bytes: number; objects: number };
  storage_by_federation: { federation_id: string; bytes: number; quota_bytes: number | null }[];
  queue: { jobs_by_status: Record<string, number>; oldest_at: string | null };
  background: { name: string; state: "up" | "down"; since: string; reason?: string | null; restarts: number }[];
  keys: { signing_key_id: string | null };
};

// --- asking ------------------------------------------------------------------------------------------------------------

type Query = Record<string, string | number | boolean | string[] | null | undefined>;

export function address(path: string, query: Query = {}): string {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query))
    for (const one of Array.isArray(value) ? value : [value]) if (one != null && one !== "") words.append(name, String(one));
  return words.size ? `${path}?${words}` : path;
}

async function ask<T>(path: string, query: Query = {}, options: RequestInit = {}): Promise<T> {
  let answer: Response;
  try {
    answer = await request(address(path, query), options);
  } catch (error) {
    throw problemOf(error);
  }
  const text = await answer.text();
  if (answer.ok) return (text ? JSON.parse(text) : undefined) as T;
  throw problemOf(answer.headers.get("content-type")?.includes("json") ? JSON.parse(text) : undefined, answer.status);
}

function send<T>(method: string, path: string, body?: unknown, headers: Record<string, string> = {}): Promise<T> {
  const content = body === undefined ? {} : { body: JSON.stringify(body), headers: { ...headers, "Content-Type": "application/json" } };
  return ask<T>(path, {}, { method, headers, ...content });
}

// --- sessions ----------------------------------------------------------------------------------------------------------

const EVERYTHING = ["approve", "file", "administer", "train", "read"];

export async function whoAmI(): Promise<Me> {
  return ask<Me>("/v1/browser-session");
}

export async function openSession(token: string): Promise<Me> {
  try {
    return await send<Me>("POST", "/v1/browser-session", { token });
  } catch (error) {
    if (problemOf(error).status !== 404 && problemOf(error).status !== 405) throw error;
  }
  useToken(token);
  try {
    return await ask<Me>("/v1/me");
  } catch (error) {
    if (problemOf(error).status !== 404) throw error;
  }
  await call(sdk.discoverErasure());
  return {
    credential_id: "", role: "admin", label: null, federation_id: null, client_id: null, client_name: null, person: null,
    session: false, expires_at: null, can: EVERYTHING,
  };
}

export async function closeSession(): Promise<void> {
  useToken(null);
  await send("DELETE", "/v1/browser-session").catch(() => undefined);
}

export type OpenId = { enabled: boolean; name: string };
export const openId = () => ask<OpenId>("/v1/openid").catch(() => ({ enabled: false, name: "" }));

// --- federations, clients, credentials ---------------------------------------------------------------------------------

const query = (cursor?: string) => ({ cursor, limit: 200 });

export const federations = (cursor?: string) => call(sdk.listFederations({ query: query(cursor) }));
export const federation = (id: string) => call(sdk.getFederation({ path: { federation_id: id } })) as Promise<Federation>;
export const createFederation = (name: string) => call(sdk.createFederation({ body: { name } }));
export const changeFederation = (id: string, change: Record<string, unknown>) =>
  send<Federation>("PATCH", `/v1/federations/${id}`, change);
export const clients = (federationId: string, cursor?: string) =>
  call(sdk.listClients({ path: { federation_id: federationId }, query: query(cursor) }));
export const enrol = (federationId: string, name: string) =>
  call(sdk.createClient({ path: { federation_id: federationId }, body: { name } }));
export const rotate = (clientId: string) => call(sdk.rotateClientCredential({ path: { client_id: clientId } }));
export const removeClient = (clientId: string) => call(sdk.removeClient({ path: { client_id: clientId } }));
export const credentials = (federationId: string, cursor?: string) =>
  call(sdk.listCredentials({ path: { federation_id: federationId }, query: query(cursor) }));
export const issue = (federationId: string, role: sdk.CredentialCreate["role"], label: string) =>
  call(sdk.createCredential({ path: { federation_id: federationId }, body: { role, label } }));
export const revoke = (id: string) => call(sdk.revokeCredential({ path: { credential_id: id } }));
export const workers = (federationId: string, cursor?: string) =>
  ask<{ items: Worker[]; next_cursor?: string | null }>(`/v1/federations/${federationId}/workers`, query(cursor));
export const tasksOfClient = (clientId: string, cursor?: string) =>
  ask<{ items: sdk.Task[]; next_cursor?: string | null }>(`/v1/clients/${clientId}/tasks`, query(cursor));
export const periods = (federationId: string, cursor?: string) =>
  call(sdk.listPeriods({ path: { federation_id: federationId }, query: query(cursor) }));
export const acts = (federationId: string, cursor?: string) =>
  call(sdk.listActs({ path: { federation_id: federationId }, query: { newest_first: true, ...query(cursor) } }));

// --- runs --------------------------------------------------------------------------------------------------------------

export const runs = (federationId: string, status?: sdk.Run["status"], cursor?: string) =>
  call(sdk.listRuns({ query: { federation_id: federationId, status, ...query(cursor) } }));
export const run = (id: string) => call(sdk.getRun({ path: { run_id: id } }));
export const changeRun = (id: string, change: "pause" | "resume" | "cancel", version: number) =>
  send<sdk.Run>("POST", `/v1/runs/${id}/${change}`, undefined, { "If-Match": `"${version}"` });
export const tasks = (id: string, status: string | undefined, cursor?: string) =>
  call(sdk.listTasks({ path: { run_id: id }, query: { status: status as never, ...query(cursor) } }));
export const rounds = (id: string, cursor?: string) => call(sdk.listRounds({ path: { run_id: id }, query: query(cursor) }));
export const checkpoints = (id: string, cursor?: string) =>
  call(sdk.listCheckpoints({ path: { run_id: id }, query: query(cursor) }));
export const runEvents = (id: string, cursor?: string) => call(sdk.listEvents({ path: { run_id: id }, query: query(cursor) }));
export const topology = (id: string, members = 50) => ask<RunTopology>(`/v1/runs/${id}/topology`, { members });
export const series = (id: string, metric: string[] = [], points = 400) => ask<RunSeries>(`/v1/runs/${id}/series`, { metric, points });
export const grid = (id: string, from?: number, to?: number, cursor?: string) =>
  ask<RunGrid>(`/v1/runs/${id}/grid`, { rounds_from: from, rounds_to: to, clients: 500, cursor });
export const lineage = (id: string) => call(sdk.getLineage({ path: { checkpoint_id: id } }));
export const lineageEdges = (id: string, depth: number, client?: string) =>
  ask<LineageEdges>(`/v1/checkpoints/${id}/lineage/edges`, { depth, client });

// --- requests to forget ------------------------------------------------------------------------------------------------

export type RequestFilter = {
  status?: string[];
  subject?: string;
  run?: string;
  due_before?: string;
  awaiting_my_approval?: boolean;
  sort?: string;
};
type RequestPage = { items: ErasureRequest[]; next_cursor?: string | null };

export const requests = (federationId: string | null, filter: RequestFilter, cursor?: string) =>
  ask<RequestPage>("/v1/erasure-requests", { federation_id: federationId, ...filter, ...query(cursor) });
export const requestCounts = (federationId: string | null, filter: RequestFilter = {}) =>
  ask<Counts>("/v1/erasure-requests:count", { federation_id: federationId, ...filter });
export const erasure = (id: string) => call(sdk.getErasure({ path: { erasure_id: id } })) as Promise<ErasureRequest>;
export const erasureEvents = (id: string, cursor?: string) =>
  call(sdk.listErasureEvents({ path: { erasure_id: id }, query: query(cursor) }));
export const deliveries = (id: string, cursor?: string) =>
  call(sdk.listDeliveries({ path: { erasure_id: id }, query: query(cursor) }));
export const discovery = () => call(sdk.discoverErasure());
export const preview = (body: sdk.ErasurePreviewRequest) => call(sdk.previewErasure({ body }));
export const fileErasure = (body: Record<string, unknown>, key: string) =>
  send<ErasureRequest>("POST", "/v1/erasure-requests", body, { "Idempotency-Key": key });
export const judge = (id: string, judgement: "approve" | "deny" | "cancel" | "retry", version: number, reason?: string) =>
  send<ErasureRequest>("POST", `/v1/erasure-requests/${id}/${judgement}`, reason ? { reason } : undefined, {
    "If-Match": `"${version}"`,
  });
export const extend = (id: string, until: string, reason: string) =>
  send<ErasureRequest>("POST", `/v1/erasure-requests/${id}/extend`, { until, reason });
export const notes = (id: string, cursor?: string) =>
  ask<{ items: Note[]; next_cursor?: string | null }>(`/v1/erasure-requests/${id}/notes`, query(cursor));
export const addNote = (id: string, text: string) => send<Note>("POST", `/v1/erasure-requests/${id}/notes`, { text });

// --- certificates ------------------------------------------------------------------------------------------------------

export async function certificate(id: string): Promise<Uint8Array> {
  const answer = await request(`/v1/erasure-requests/${id}/certificate`);
  if (!answer.ok) throw problemOf(await answer.json().catch(() => undefined), answer.status);
  return new Uint8Array(await answer.arrayBuffer());
}

export async function text(path: string): Promise<string> {
  const answer = await request(path);
  if (!answer.ok) throw problemOf(await answer.json().catch(() => undefined), answer.status);
  return answer.text();
}

export type HandOver = { id: string; url: string; secret_shown_once: string; expires_at: string };
export const handOver = (id: string) => send<HandOver>("POST", `/v1/erasure-requests/${id}/hand-over`);
export const openHandOver = (id: string, secret: string) =>
  send<Record<string, unknown>>("POST", `/v1/hand-overs/${id}:open`, { secret });
export const keys = () => ask<SigningKey[]>("/v1/keys");
export const system = () => ask<System>("/v1/system");
