/** One stream of events for the federation. Events carry no state: they say what to ask for again. A stream that breaks
 * is opened again from the last event that was seen. */
import { createContext, useContext, useEffect, useState, type ReactNode } from "react";
import { useQueryClient, type QueryClient } from "@tanstack/react-query";
import { request } from "./api/client";

export type LiveState = "off" | "connecting" | "live" | "broken";
type FederationEvent = { type: string; run_id?: string | null; erasure_id?: string | null };

const Live = createContext<LiveState>("off");
const GATHER_MS = 400;
/** Asking again takes at most a fifth of the time, however much is on the page. */
const REST = 4;
const LONGEST_REST_MS = 15_000;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15_000;

export function LiveProvider({ federation, children }: { federation: string | null; children: ReactNode }) {
  const queries = useQueryClient();
  const [state, setState] = useState<LiveState>("off");
  useEffect(() => {
    if (federation === null) {
      setState("off");
      return;
    }
    const ending = new AbortController();
    const gathered = new Gathered(queries);
    void follow(federation, gathered, setState, ending.signal);
    return () => {
      ending.abort();
      gathered.stop();
    };
  }, [federation, queries]);
  return <Live value={state}>{children}</Live>;
}

export function useLive(): LiveState {
  return useContext(Live);
}

/** Which answers are out of date: events of a busy run come by the hundred, and are answered together. */
class Gathered {
  private stale = new Set<string>();
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly queries: QueryClient) {}

  add(event: FederationEvent): void {
    this.stale.add("federation");
    if (event.run_id) this.stale.add(event.run_id);
    if (event.erasure_id) this.stale.add(event.erasure_id);
    this.timer ??= setTimeout(() => void this.tell(), GATHER_MS);
  }

  /** After a gap nothing is known to be up to date. */
  tellAll(): void {
    void this.queries.invalidateQueries();
  }

  stop(): void {
    this.stale.clear();
    clearTimeout(this.timer);
  }

  private async tell(): Promise<void> {
    const [stale, begun] = [this.stale, performance.now()];
    this.stale = new Set();
    await this.queries.invalidateQueries({ predicate: ({ queryKey }) => queryKey.some((part) => stale.has(String(part))) });
    const rest = Math.min(REST * (performance.now() - begun), LONGEST_REST_MS);
    this.timer = setTimeout(() => {
      if (this.stale.size > 0) void this.tell();
      else this.timer = undefined;
    }, rest);
  }
}

async function follow(federation: string, gathered: Gathered, tell: (state: LiveState) => void, ending: AbortSignal) {
  let last = "";
  let wait = FIRST_WAIT_MS;
  tell("connecting");
  while (!ending.aborted) {
    try {
      const headers: Record<string, string> = { Accept: "text/event-stream", ...(last && { "Last-Event-ID": last }) };
      const answer = await request(`/v1/federations/${federation}/events/stream`, { headers, signal: ending });
      if (!answer.ok || answer.body === null) throw new Error(`status ${answer.status}`);
      tell("live");
      if (wait > FIRST_WAIT_MS) gathered.tellAll();
      wait = FIRST_WAIT_MS;
      for await (const { id, data } of messages(answer.body)) {
        if (id) last = id;
        if (data) gathered.add(JSON.parse(data) as FederationEvent);
      }
    } catch {
      if (ending.aborted) return;
    }
    tell("broken");
    wait = Math.min(2 * wait, LONGEST_WAIT_MS);
    await new Promise((resolve) => setTimeout(resolve, wait * (0.5 + Math.random() / 2)));
  }
}

async function* messages(body: ReadableStream<Uint8Array>): AsyncGenerator<{ id: string; data: string }> {
  const reader = body.pipeThrough(new TextDecoderStream() as TransformStream<Uint8Array, string>).getReader();
  let buffer = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    buffer += value;
    const parts = buffer.split(/\r?\n\r?\n/);
    buffer = parts.pop() ?? "";
    for (const part of parts) {
      const fields = { id: "", data: "" };
      for (const line of part.split(/\r?\n/)) {
        const [, name, content] = /^(id|data): ?(.*)$/.exec(line) ?? [];
        if (name === "id" || name === "data") fields[name] += content;
      }
      yield fields;
    }
  }
}
