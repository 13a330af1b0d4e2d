/** The generated client, set up for a browser: problems become exceptions, writes carry the header that proves that they
 * come from this page, and an ended session is told to whoever asked to know. */
import { client } from "lethe-client/client.gen";
import type { Problem as ProblemDocument } from "lethe-client";
import { hearTime } from "../words";

const UNREACHABLE = "The coordinator cannot be reached. It may be starting again; this page goes on trying.";
const SAFE = new Set(["GET", "HEAD"]);

export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly title: string,
    detail: string,
    readonly errors: Record<string, unknown>[] = [],
  ) {
    super(detail);
  }

  get isTemporary(): boolean {
    return this.status === 0 || this.status === 429 || this.status === 503;
  }
}

export function problemOf(error: unknown, status = 0): Problem {
  if (error instanceof Problem) return error;
  const document = error as Partial<ProblemDocument> | undefined;
  if (document && typeof document === "object" && typeof document.code === "string")
    return new Problem(document.status ?? status, document.code, document.title ?? "", document.detail ?? "", document.errors ?? []);
  if (status === 0) return new Problem(0, "unreachable", "Not reachable", UNREACHABLE);
  return new Problem(status, "unknown", `HTTP ${status}`, `The answer had the status ${status} and no explanation.`);
}

type Answer<T> = { data?: T; error?: unknown; response?: Response };

/** What an operation of the generated client answers; throws a Problem. */
export async function call<T>(answering: Promise<Answer<T>>): Promise<T> {
  const { data, error, response } = await answering;
  if (response === undefined || !response.ok) throw problemOf(error, response?.status);
  return data as T;
}

let whenEnded: () => void = () => undefined;

/** `listener` is called whenever an answer says that nobody is signed in. */
export function onEndOfSession(listener: () => void): void {
  whenEnded = listener;
}

function csrfToken(): string {
  return /(?:^|;\s*)lethe-csrf=([^;]*)/.exec(document.cookie)?.[1] ?? "";
}

/** A plain request with what every request of this page carries. */
export function request(path: string, options: RequestInit = {}): Promise<Response> {
  return fetch(prepared(new Request(path, options))).then(noticed);
}

function prepared(request: Request): Request {
  if (!SAFE.has(request.method)) request.headers.set("X-CSRF-Token", csrfToken());
  return request;
}

function noticed(response: Response): Response {
  hearTime(response.headers.get("Date"));
  if (response.status === 401 && !response.url.includes("/v1/browser-session")) whenEnded();
  return response;
}

/** Addresses of journals give a stream to whoever does not ask for JSON. */
client.setConfig({ baseUrl: "", headers: { Accept: "application/json" } });
client.interceptors.request.use(prepared);
client.interceptors.response.use(noticed);
