/** The operations that pages use; the generated client does the work. */
import * as sdk from "lethe-client";
import { call } from "./client";

export type * from "lethe-client";

/** An address with what is asked for; what is absent is left out, and a list is its name several times. */
export function address(path: string, query: Record<string, unknown> = {}): string {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query))
    for (const one of Array.isArray(value) ? value : [value]) if (one != null && one !== "") words.append(name, String(one));
  return words.size ? `${path}?${words}` : path;
}

const page = (cursor?: string) => ({ cursor, limit: 200 });
const seen = (version: number) => ({ "if-match": `"${version}"` });

// --- signing in --------------------------------------------------------------------------------------------------------

export const whoAmI = () => call(sdk.getBrowserSession());
export const openSession = (token: string) => call(sdk.beginBrowserSession({ body: { token } }));
export const closeSession = () => call(sdk.endBrowserSession());
export const openId = () => call(sdk.getOpenid());

// --- federations, clients, credentials ---------------------------------------------------------------------------------

const within = (id: string) => ({ path: { federation_id: id } });

export const federations = (cursor?: string) => call(sdk.listFederations({ query: page(cursor) }));
export const federation = (id: string) => call(sdk.getFederation(within(id)));
export const createFederation = (name: string) => call(sdk.createFederation({ body: { name } }));
export const changeFederation = (id: string, body: sdk.FederationChange) => call(sdk.changeFederation({ ...within(id), body }));
export const clients = (id: string, cursor?: string) => call(sdk.listClients({ ...within(id), query: page(cursor) }));
export const enrol = (id: string, name: string) => call(sdk.createClient({ ...within(id), body: { name } }));
export const rotate = (clientId: string) => call(sdk.rotateClientCredential({ path: { client_id: clientId } }));
export const removeClient = (clientId: string) => call(sdk.removeClient({ path: { client_id: clientId } }));
export const credentials = (id: string, cursor?: string) => call(sdk.listCredentials({ ...within(id), query: page(cursor) }));
export const issue = (id: string, body: sdk.CredentialCreate) => call(sdk.createCredential({ ...within(id), body }));
export const revoke = (id: string) => call(sdk.revokeCredential({ path: { credential_id: id } }));
export const workers = (id: string, cursor?: string) => call(sdk.listWorkers({ ...within(id), query: page(cursor) }));
export const tasksOfClient = (clientId: string, cursor?: string) =>
  call(sdk.listClientTasks({ path: { client_id: clientId }, query: page(cursor) }));
export const periods = (id: string, cursor?: string) => call(sdk.listPeriods({ ...within(id), query: page(cursor) }));
export const acts = (id: string, cursor?: string) =>
  call(sdk.listActs({ ...within(id), query: { newest_first: true, ...page(cursor) } }));

// --- runs --------------------------------------------------------------------------------------------------------------

const ofRun = (id: string) => ({ path: { run_id: id } });
const CHANGES = { pause: sdk.pauseRun, resume: sdk.resumeRun, cancel: sdk.cancelRun };
export type TaskStatus = NonNullable<NonNullable<sdk.ListTasksData["query"]>["status"]>;

export const runs = (federationId: string, status?: sdk.Run["status"], cursor?: string) =>
  call(sdk.listRuns({ query: { federation_id: federationId, status, ...page(cursor) } }));
export const run = (id: string) => call(sdk.getRun(ofRun(id)));
export const changeRun = (id: string, change: keyof typeof CHANGES, version: number) =>
  call(CHANGES[change]({ ...ofRun(id), headers: seen(version) }));
export const tasks = (id: string, status?: TaskStatus, cursor?: string) =>
  call(sdk.listTasks({ ...ofRun(id), query: { status, ...page(cursor) } }));
export const checkpoints = (id: string, cursor?: string) => call(sdk.listCheckpoints({ ...ofRun(id), query: page(cursor) }));
export const runEvents = (id: string, cursor?: string) => call(sdk.listEvents({ ...ofRun(id), query: page(cursor) }));
export const topology = (id: string) => call(sdk.getTopology(ofRun(id)));
/** By id; a cohort that was named after an erased client has none. */
export const cohortNames = async (id: string): Promise<Map<string, string>> => {
  const found = await call(sdk.getTopology({ ...ofRun(id), query: { members: 0 } }));
  return new Map(found.cohorts.flatMap((one) => (one.name === null ? [] : [[one.id, one.name] as const])));
};
export const series = (id: string, metric: string[]) => call(sdk.getSeries({ ...ofRun(id), query: { metric } }));
export const grid = (id: string, from?: number, to?: number) =>
  call(sdk.getGrid({ ...ofRun(id), query: { rounds_from: from, rounds_to: to, clients: 500 } }));
export const lineage = (id: string) => call(sdk.getLineage({ path: { checkpoint_id: id } }));
export const lineageEdges = (id: string, depth: number) =>
  call(sdk.getLineageEdges({ path: { checkpoint_id: id }, query: { depth } }));

// --- requests to forget ------------------------------------------------------------------------------------------------

export type RequestFilter = Pick<
  NonNullable<sdk.ListErasuresData["query"]>, "status" | "subject" | "run" | "due_before" | "awaiting_my_approval" | "sort"
>;
const ofRequest = (id: string) => ({ path: { erasure_id: id } });

export const requests = (federationId: string, filter: RequestFilter, cursor?: string) =>
  call(sdk.listErasures({ query: { federation_id: federationId, ...filter, ...page(cursor) } }));
export const requestCounts = (federationId: string) => call(sdk.countErasures({ query: { federation_id: federationId } }));
export const erasure = (id: string) => call(sdk.getErasure(ofRequest(id)));
export const erasureEvents = (id: string, cursor?: string) =>
  call(sdk.listErasureEvents({ ...ofRequest(id), query: page(cursor) }));
export const deliveries = (id: string, cursor?: string) => call(sdk.listDeliveries({ ...ofRequest(id), query: page(cursor) }));
export const discovery = () => call(sdk.discoverErasure());
export const preview = (body: sdk.ErasurePreviewRequest) => call(sdk.previewErasure({ body }));
export const fileErasure = (body: sdk.ErasureCreate, key: string) =>
  call(sdk.fileErasure({ body, headers: { "Idempotency-Key": key } }));
export const extend = (id: string, until: string, reason: string) =>
  call(sdk.extendErasure({ ...ofRequest(id), body: { until, reason } }));
export const notes = (id: string, cursor?: string) => call(sdk.listNotes({ ...ofRequest(id), query: page(cursor) }));
export const addNote = (id: string, text: string) => call(sdk.addNote({ ...ofRequest(id), body: { text } }));

export type Judgement = "approve" | "deny" | "cancel" | "retry";

export function judge(id: string, judgement: Judgement, version: number, reason?: string) {
  const about = { ...ofRequest(id), headers: seen(version) };
  switch (judgement) {
    case "approve":
      return call(sdk.approveErasure({ ...about, body: { reason } }));
    case "deny":
      return call(sdk.denyErasure({ ...about, body: { reason: reason ?? "" } }));
    case "cancel":
      return call(sdk.cancelErasure(about));
    case "retry":
      return call(sdk.retryErasure(about));
  }
}

// --- certificates ------------------------------------------------------------------------------------------------------

/** Byte for byte: a certificate that is written anew does not verify. */
export async function certificate(id: string): Promise<Uint8Array> {
  const bytes: unknown = await call(sdk.getCertificate({ ...ofRequest(id), parseAs: "arrayBuffer" }));
  return new Uint8Array(bytes as ArrayBuffer);
}

export const certificatePage = (id: string) => call(sdk.getCertificatePage({ ...ofRequest(id), parseAs: "text" }));
export const artefacts = (id: string) => call(sdk.getArtefacts({ ...ofRequest(id), parseAs: "text" })) as Promise<string>;
export const handOver = (id: string) => call(sdk.createHandOver(ofRequest(id)));
export const keys = () => call(sdk.listKeys());
export const system = () => call(sdk.getSystem());
