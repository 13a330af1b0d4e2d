/** Asking that clients be forgotten: what it would take comes first, and a name is typed before anything happens. */
import { useRef, useState, type FormEvent } from "react";
import { useMutation, useQuery } from "@tanstack/react-query";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import {
  clients, discovery, fileErasure, preview, type ErasureCreate, type ErasureOption, type ErasurePreview, type ErasurePreviewRequest,
} from "../api/operations";
import { useFederation } from "../federation";
import { Card, Dialog, Empty, Field, Page, Trouble } from "../parts/basics";
import { Icon } from "../parts/icon";
import { GROUNDS } from "../parts/requests";
import { useMe } from "../session";
import { bytes, count, counted, seconds, share } from "../words";

const route = getRouteApi("/inside/requests/new");

type Wanted = {
  subjects: string[];
  scope: "client" | "samples";
  samples: Record<string, string>;
  ground: string;
  ticket: string;
  deadline: string;
  note: string;
  approval: boolean;
};

export function NewRequest() {
  const federation = useFederation();
  const me = useMe();
  const navigate = useNavigate();
  const { subject } = route.useSearch() as { subject?: string[] };
  const own = me.client_name;
  const [wanted, setWanted] = useState<Wanted>({
    subjects: own !== null ? [own] : (subject ?? []),
    scope: "client", samples: {}, ground: "", ticket: "", deadline: "", note: "", approval: false,
  });
  const [method, setMethod] = useState<string | null>(null);
  const [isConfirming, setConfirming] = useState(false);
  const key = useRef("");
  const looked = useMutation({ mutationFn: (body: ErasurePreviewRequest) => preview(body) });
  const filed = useMutation({
    mutationFn: (body: ErasureCreate) => fileErasure(body, key.current),
    onSuccess: (made) => void navigate({ to: "/requests/$id", params: { id: made.id } }),
  });
  const change = (part: Partial<Wanted>) => {
    setWanted((before) => ({ ...before, ...part }));
    if (part.subjects ?? part.scope ?? part.samples) {
      looked.reset();
      setMethod(null);
    }
  };
  const look = (event: FormEvent) => {
    event.preventDefault();
    key.current = newKey();
    looked.mutate(bodyOf(wanted, federation), { onSuccess: (found) => setMethod(found.chosen) });
  };
  const file = () => {
    const option = looked.data?.options.find((one) => one.method === method);
    filed.mutate({
      ...bodyOf(wanted, federation),
      ...(method !== looked.data?.chosen && option ? { method: option.method, guarantee: option.guarantee } : {}),
      ...(wanted.ground && { ground: wanted.ground as ErasureCreate["ground"] }),
      ...(wanted.ticket && { external_ref: wanted.ticket }),
      ...(wanted.note && { note: wanted.note }),
      ...(wanted.deadline && { legal_deadline: `${wanted.deadline}T23:59:59Z` }),
      ...(wanted.approval && { needs_approval: true }),
    });
  };
  return (
    <Page title="New request" note="Nothing happens before you have seen what it takes and typed a name.">
      <form onSubmit={look}>
        <Card title="1. Who is to be forgotten">
          {own === null ? <Subjects federation={federation} chosen={wanted.subjects} onChange={(subjects) => change({ subjects })} /> : <p>{own}</p>}
          <Scope wanted={wanted} change={change} />
        </Card>
        <Card title="2. Why, and by when">
          <Why wanted={wanted} change={change} />
        </Card>
        <p>
          <button type="submit" className="primary" disabled={wanted.subjects.length === 0 || looked.isPending}>
            {looked.isPending ? "Looking …" : "Show what it takes"}
          </button>
        </p>
      </form>
      <Trouble error={looked.error} />
      {looked.data && (
        <Card title="3. How">
          <Methods found={looked.data} chosen={method} onChoose={setMethod} />
          <p className="warning">
            Nothing returns after the fence: from then on no model with this data in it is served or trained on, and it cannot be taken back.
          </p>
          <button type="button" className="primary" disabled={method === null} onClick={() => setConfirming(true)}>
            File the request
          </button>
        </Card>
      )}
      <Confirm subjects={wanted.subjects} isOpen={isConfirming} onClose={() => setConfirming(false)} onConfirm={file} isBusy={filed.isPending} error={filed.error} />
    </Page>
  );
}

/** New for each intent; a second try with the same one files nothing twice. */
function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function numbersIn(text: string): number[] {
  return text.split(/[\s,;]+/).filter(Boolean).map(Number);
}

function bodyOf(wanted: Wanted, federation: string): ErasurePreviewRequest {
  const isOfSamples = wanted.scope === "samples";
  const samples = Object.fromEntries(wanted.subjects.map((name) => [name, numbersIn(wanted.samples[name] ?? "")]));
  return { federation_id: federation, subjects: wanted.subjects, scope: wanted.scope, ...(isOfSamples && { samples }) };
}

function Subjects({ federation, chosen, onChange }: { federation: string; chosen: string[]; onChange: (names: string[]) => void }) {
  const [typed, setTyped] = useState("");
  const known = useQuery({ queryKey: ["federation", federation, "clients", "first"], queryFn: () => clients(federation) });
  const add = () => {
    const name = typed.trim();
    if (name && !chosen.includes(name)) onChange([...chosen, name]);
    setTyped("");
  };
  return (
    <>
      <Field label="Client" hint="Press Enter after each name.">
        {(id, described) => (
          <span className="row">
            <input
              id={id}
              aria-describedby={described}
              list="clients-known"
              value={typed}
              onChange={(event) => setTyped(event.target.value)}
              onKeyDown={(event) => {
                if (event.key !== "Enter") return;
                event.preventDefault();
                add();
              }}
            />
            <button type="button" onClick={add} disabled={!typed.trim()}>
              Add
            </button>
          </span>
        )}
      </Field>
      <datalist id="clients-known">
        {known.data?.items.filter((one) => one.status === "active").map((one) => <option key={one.id} value={one.name} />)}
      </datalist>
      {chosen.length === 0 ? (
        <p className="note">Nobody is named yet.</p>
      ) : (
        <ul className="chips" aria-label="To be forgotten">
          {chosen.map((name) => (
            <li key={name}>
              {name}
              <button type="button" className="plain" aria-label={`Leave ${name} out`} onClick={() => onChange(chosen.filter((one) => one !== name))}>
                <Icon of="cross" />
              </button>
            </li>
          ))}
        </ul>
      )}
    </>
  );
}

type Part = { wanted: Wanted; change: (part: Partial<Wanted>) => void };

function Scope({ wanted, change }: Part) {
  return (
    <>
      <fieldset>
        <legend>What of it</legend>
        <label className="check">
          <input type="radio" name="scope" checked={wanted.scope === "client"} onChange={() => change({ scope: "client" })} />
          Everything; the client leaves
        </label>
        <label className="check">
          <input type="radio" name="scope" checked={wanted.scope === "samples"} onChange={() => change({ scope: "samples" })} />
          Some samples; the client stays and leaves them out from now on
        </label>
      </fieldset>
      {wanted.scope === "samples" &&
        wanted.subjects.map((name) => (
          <Field key={name} label={`Samples of ${name}`} hint="Row numbers in its data source, from 0.">
            {(id, described) => (
              <textarea
                id={id}
                aria-describedby={described}
                rows={2}
                value={wanted.samples[name] ?? ""}
                onChange={(event) => change({ samples: { ...wanted.samples, [name]: event.target.value } })}
              />
            )}
          </Field>
        ))}
    </>
  );
}

function Why({ wanted, change }: Part) {
  const found = useQuery({ queryKey: ["discovery"], queryFn: discovery, staleTime: Infinity });
  const days = found.data?.legal_deadline_days ?? 30;
  return (
    <div className="grid">
      <Field label="Ground">
        {(id) => (
          <select id={id} value={wanted.ground} onChange={(event) => change({ ground: event.target.value })}>
            <option value="">not said</option>
            {Object.entries(GROUNDS).map(([name, words]) => (
              <option key={name} value={name}>
                {words}
              </option>
            ))}
          </select>
        )}
      </Field>
      <Field label="Ticket" hint="Its name elsewhere.">
        {(id, described) => <input id={id} aria-describedby={described} maxLength={200} value={wanted.ticket} onChange={(event) => change({ ticket: event.target.value })} />}
      </Field>
      <Field label="Deadline" hint={`${days} days from now when empty.`}>
        {(id, described) => <input id={id} aria-describedby={described} type="date" value={wanted.deadline} onChange={(event) => change({ deadline: event.target.value })} />}
      </Field>
      <div className="wide-field">
      <Field label="Note" hint="Those who decide read it.">
        {(id, described) => <textarea id={id} aria-describedby={described} rows={2} maxLength={4000} value={wanted.note} onChange={(event) => change({ note: event.target.value })} />}
      </Field>
      </div>
      <label className="check wide-field">
        <input type="checkbox" checked={wanted.approval} onChange={(event) => change({ approval: event.target.checked })} />
        Wait until somebody has approved it
      </label>
    </div>
  );
}

function Methods({ found, chosen, onChoose }: { found: ErasurePreview; chosen: string | null; onChoose: (method: string) => void }) {
  const options = [...found.options].sort((a, b) => Number(b.applies) - Number(a.applies) || Number(b.method === found.chosen) - Number(a.method === found.chosen));
  if (options.length === 0) return <Empty command="lethe methods">No method is known here.</Empty>;
  return (
    <fieldset className="cards">
      <legend>What each method takes; figures are estimates from the history of the runs</legend>
      {options.map((one) => (
        <label key={one.method} className={`method ${one.applies ? "" : "off"} ${one.method === chosen ? "on" : ""}`}>
          <span>
            <input type="radio" name="method" disabled={!one.applies} checked={one.method === chosen} onChange={() => onChoose(one.method)} />{" "}
            <strong>{one.method}</strong> {one.method === found.chosen && <em>recommended</em>}
          </span>
          <Cost of={one} />
        </label>
      ))}
    </fieldset>
  );
}

function Cost({ of }: { of: ErasureOption }) {
  if (!of.applies)
    return (
      <span className="note">
        {of.guarantee}. Does not apply: {of.why_not}
      </span>
    );
  const facts: [string, string][] = [
    ["guarantee", of.guarantee],
    ["cohorts touched", count(of.cohorts.length)],
    ["untouched", count(of.num_cohorts_untouched)],
    ["rounds to redo", count(of.rounds_to_redo)],
    ["client updates", count(of.client_updates_to_redo)],
    ["bytes to move", bytes(of.bytes_to_move)],
    ["time", seconds(of.estimated_seconds)],
    ["starting accuracy", share(of.initial_accuracy)],
  ];
  return (
    <span className="cost">
      {facts.map(([name, value]) => (
        <span key={name}>
          <span className="note">{name}</span> <span>{value}</span>
        </span>
      ))}
    </span>
  );
}

function Confirm({ subjects, isOpen, onClose, onConfirm, isBusy, error }: {
  subjects: string[]; isOpen: boolean; onClose: () => void; onConfirm: () => void; isBusy: boolean; error: unknown;
}) {
  const [typed, setTyped] = useState("");
  const needed = subjects.length === 1 ? subjects[0] : counted(subjects.length, "client");
  return (
    <Dialog title="This cannot be taken back" isOpen={isOpen} onClose={onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          onConfirm();
        }}
      >
        <p>
          <strong className="wrap">{subjects.join(", ")}</strong> will be forgotten.
        </p>
        <Field label={`Type “${needed}” to confirm`}>
          {(id) => <input id={id} autoComplete="off" value={typed} onChange={(event) => setTyped(event.target.value)} />}
        </Field>
        <Trouble error={error} />
        <div className="actions">
          <button type="button" onClick={onClose}>
            Back
          </button>
          <button type="submit" className="danger" disabled={typed !== needed || isBusy}>
            {isBusy ? "Filing …" : "Forget"}
          </button>
        </div>
      </form>
    </Dialog>
  );
}
