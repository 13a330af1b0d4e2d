/** One request to forget: how far it is, who decided, and the one thing that helps when it is stuck. */
import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { problemOf } from "../api/client";
import {
  addNote, deliveries, erasure, erasureEvents, extend, judge, notes, type ErasureEvent, type ErasureRequest, type Judgement,
} from "../api/operations";
import { everything } from "../api/pages";
import { Awaiting, Bar, Card, Copy, Dialog, Empty, Facts, Field, Page, Status, Trouble } from "../parts/basics";
import { Icon } from "../parts/icon";
import { Countdown, GROUNDS, nameOf } from "../parts/requests";
import { SmallTable } from "../parts/table";
import { useMe, useSession } from "../session";
import { counted, day, moment, sentence, short } from "../words";

const route = getRouteApi("/inside/requests/$id");

export function Request() {
  const { id } = route.useParams();
  const query = useQuery({ queryKey: ["erasure", id], queryFn: () => erasure(id), refetchInterval: 10_000 });
  const one = query.data;
  return (
    <Page
      title={`Request ${one?.external_ref ?? short(id)}`}
      note={one && <>To forget {one.scope === "samples" ? "samples of " : ""}{one.subjects.join(", ")}</>}
      actions={one && <Countdown of={one} />}
    >
      <Awaiting query={query}>{one && <Details one={one} />}</Awaiting>
    </Page>
  );
}

function Details({ one }: { one: ErasureRequest }) {
  const { can } = useSession();
  const isStaff = useMe().client_id === null;
  const judging = useJudgement(one);
  const events = useQuery({ queryKey: ["erasure", one.id, "events"], queryFn: () => everything((cursor) => erasureEvents(one.id, cursor), 2000) });
  return (
    <>
      <Changed changes={judging.changed} />
      <Card title="How far it is" actions={<Status of={one.status} />}>
        <Timeline one={one} events={events.data ?? []} />
        {one.reason && one.status !== "requires_action" && <p>{one.reason}</p>}
        <RequiresAction one={one} judging={judging} />
        {one.status === "completed" && (
          <p>
            <Link to="/requests/$id/certificate" params={{ id: one.id }} className="button primary">
              Certificate
            </Link>
          </p>
        )}
      </Card>
      {(one.status === "awaiting_approval" || one.decision) && <Decision one={one} judging={judging} />}
      <Cohorts one={one} />
      <div className="pair">
        <Card title="The request">
          <About one={one} />
        </Card>
        <div>
          {isStaff && <Notes id={one.id} />}
          {can("approve") && one.days_left != null && !one.extension && <Extension one={one} />}
        </div>
      </div>
      <Deliveries id={one.id} />
      <Card title="Everything that happened">
        <Awaiting query={events}>
          <SmallTable
            label="Events"
            head={["When", "What", "Details"]}
            rows={(events.data ?? []).map((event) => [moment(event.at), event.type, <code key={event.seq}>{wordsOf(event.data)}</code>])}
          />
        </Awaiting>
      </Card>
    </>
  );
}

function wordsOf(data: Record<string, unknown>): string {
  return Object.entries(data).filter(([, value]) => value !== null).map(([name, value]) => `${name}=${typeof value === "object" ? JSON.stringify(value) : String(value)}`).join(" ");
}

type Step = { name: string; at: string | null; detail?: string; isSkipped?: boolean };

function stepsOf(one: ErasureRequest, events: ErasureEvent[]): Step[] {
  const when = (type: string) => events.filter((event) => event.type === type).at(-1)?.at ?? null;
  const isOver = one.status === "completed";
  const linesDone = one.lines.length > 0 && one.lines.every((line) => line.done_at !== null);
  const recovered = linesDone ? one.lines.map((line) => line.done_at!).sort().at(-1)! : isOver ? one.completed_at : null;
  const isAudited = one.lines.some((line) => line.audit !== null);
  return [
    { name: "Received", at: one.created_at, detail: one.filed_by ? `by ${nameOf(one.filed_by)}` : undefined },
    ...(one.needs_approval || one.decision ? [{ name: one.decision === "denied" ? "Denied" : one.decision ? "Approved" : "Approval", at: one.decided_at ?? null, detail: one.decided_by ? `by ${nameOf(one.decided_by)}` : undefined }] : []),
    { name: "Fenced", at: one.fenced_at, detail: "no model with the data is served or trained on" },
    { name: "First clean", at: one.first_clean_at, detail: "every touched cohort serves a model without it" },
    { name: "Recovered", at: recovered },
    { name: "Audited", at: isAudited ? when("LineAudited") ?? recovered : null, isSkipped: !isAudited && (one.guarantee === "exact" || isOver), detail: one.guarantee === "exact" ? "not needed: the method is exact" : undefined },
    { name: "Certified", at: isOver ? one.completed_at : null, detail: "bytes purged, keys destroyed, certificate signed" },
  ];
}

function Timeline({ one, events }: { one: ErasureRequest; events: ErasureEvent[] }) {
  const hasStopped = ["denied", "cancelled", "failed"].includes(one.status);
  const steps = stepsOf(one, events).map((step) => (hasStopped && step.at === null ? { ...step, isSkipped: true } : step));
  const now = steps.findIndex((step) => step.at === null && !step.isSkipped);
  return (
    <ol className="timeline">
      {steps.map((step, i) => {
        const state = step.at !== null ? "past" : step.isSkipped ? "skipped" : i === now ? "now" : "ahead";
        const icon = ({ past: "check", skipped: "dash", now: "work", ahead: "ring" } as const)[state];
        return (
          <li key={step.name} className={state} aria-current={state === "now" ? "step" : undefined}>
            <strong><Icon of={icon} /> {step.name}</strong>
            <span className="hidden">{{ past: "done", skipped: "left out", now: "now", ahead: "not yet" }[state]}</span>
            <span className="note">{step.at ? moment(step.at) : state === "skipped" ? (hasStopped ? "never" : "") : state === "now" ? (step.name === "Approval" ? "awaited" : "in progress") : "not yet"}</span>
            {step.detail && <span className="note">{step.detail}</span>}
          </li>
        );
      })}
    </ol>
  );
}

/** Changes the request as it was seen: what changed meanwhile is shown first. */
function useJudgement(one: ErasureRequest) {
  const queries = useQueryClient();
  const [changed, setChanged] = useState<string[] | null>(null);
  const judging = useMutation({
    mutationFn: ({ what, reason }: { what: Judgement; reason?: string }) => judge(one.id, what, one.version, reason),
    onSuccess: () => void queries.invalidateQueries(),
    onMutate: () => setChanged(null),
    onError: async (error) => {
      if (problemOf(error).status !== 412) return;
      const now = await erasure(one.id);
      setChanged(differences(one, now));
      queries.setQueryData(["erasure", one.id], now);
    },
  });
  const error = judging.error && problemOf(judging.error).status === 412 && changed ? null : judging.error;
  return { judge: judging.mutate, isBusy: judging.isPending, error, changed };
}

function differences(before: ErasureRequest, now: ErasureRequest): string[] {
  const names = Object.keys(now).filter((name) => !["version", "lines", "exclusions", "days_left"].includes(name)) as (keyof ErasureRequest)[];
  const shown = (value: unknown) => (value == null ? "nothing" : typeof value === "object" ? JSON.stringify(value) : String(value));
  const found = names.filter((name) => shown(before[name]) !== shown(now[name])).map((name) => `${sentence(name)}: ${shown(before[name])} → ${shown(now[name])}`);
  return found.length ? found : ["Only its progress."];
}

function Changed({ changes }: { changes: string[] | null }) {
  if (changes === null) return null;
  return (
    <div className="trouble" role="alert">
      <strong>It changed while you looked at it, and nothing was done</strong>
      <ul>{changes.map((change) => <li key={change}>{change}</li>)}</ul>
      <p>Below is what it is now. Decide again if it is still what you want.</p>
    </div>
  );
}

type Judging = ReturnType<typeof useJudgement>;

function Decision({ one, judging }: { one: ErasureRequest; judging: Judging }) {
  const { can } = useSession();
  const me = useMe();
  const { judge, isBusy, error } = judging;
  const [reason, setReason] = useState("");
  const mayDecide = one.status === "awaiting_approval" && (one.approvable_by_me ?? can("approve"));
  const mayCancel = one.status === "awaiting_approval" && can("approve");
  return (
    <Card title="Approval" tone={mayDecide ? "unsure" : undefined}>
      {one.decision ? (
        <p>
          {sentence(one.decision)} by <strong>{nameOf(one.decided_by)}</strong> on {moment(one.decided_at)}
          {one.decision_reason ? `: ${one.decision_reason}` : "."}
        </p>
      ) : (
        <p>
          Filed by <strong>{nameOf(one.filed_by)}</strong>. {mayDecide ? "You may decide." : one.filed_by?.credential_id === me.credential_id ? "Somebody else has to decide: you filed it." : "Somebody with the right to approve decides."}
        </p>
      )}
      {(mayDecide || mayCancel) && (
        <>
          {mayDecide && (
            <Field label="Reason" hint="Needed to deny; the requester is told.">
              {(id, described) => <textarea id={id} aria-describedby={described} rows={2} maxLength={2000} value={reason} onChange={(event) => setReason(event.target.value)} />}
            </Field>
          )}
          <Trouble error={error} />
          <div className="actions">
            {mayDecide && (
              <>
                <button type="button" className="danger" disabled={isBusy} onClick={() => judge({ what: "approve", reason: reason.trim() || undefined })}>
                  Approve: fence and forget
                </button>
                <button type="button" disabled={isBusy || !reason.trim()} onClick={() => judge({ what: "deny", reason: reason.trim() })}>
                  Deny
                </button>
              </>
            )}
            <button type="button" disabled={isBusy} onClick={() => judge({ what: "cancel" })}>
              Withdraw the request
            </button>
          </div>
        </>
      )}
    </Card>
  );
}

function RequiresAction({ one, judging }: { one: ErasureRequest; judging: Judging }) {
  const { can } = useSession();
  const { judge, isBusy, error } = judging;
  if (one.status !== "requires_action") return null;
  return (
    <div className="trouble">
      <strong>It requires action</strong>
      <p>{one.reason}</p>
      <Trouble error={error} />
      {can("approve") && (
        <button type="button" className="primary" disabled={isBusy} onClick={() => judge({ what: "retry" })}>
          It is mended: try again
        </button>
      )}
    </div>
  );
}

function Cohorts({ one }: { one: ErasureRequest }) {
  if (one.lines.length === 0 && one.exclusions.length === 0) return null;
  return (
    <Card title={`What it touches: ${counted(one.lines.length, "cohort")}`}>
      <SmallTable
        label="Cohorts that are touched"
        head={["Run", "Cohort", "What becomes of it", "Epoch", "Progress", "Audit"]}
        rows={one.lines.map((line) => [
          <Link key="run" to="/runs/$id" params={{ id: line.run_id }}>{line.run}</Link>,
          line.cohort,
          line.action,
          `${line.epoch_before} → ${line.epoch_after}`,
          <span key="bar" className="row">
            <Bar value={line.done_at ? 1 : line.round_now} of={line.done_at ? 1 : line.target_round} label={`Progress of ${line.cohort}`} />
            {line.done_at ? "done" : `round ${line.round_now} of ${line.target_round}`}
          </span>,
          line.audit ? String(line.audit.verdict) : "–",
        ])}
      />
      {one.exclusions.length > 0 && (
        <SmallTable
          label="Samples that workers leave out"
          head={["Client", "Samples", "Ordered", "Confirmed", "Problem"]}
          rows={one.exclusions.map((x) => [x.client, x.num_samples, moment(x.ordered_at), moment(x.acknowledged_at), x.problem ?? "–"])}
        />
      )}
    </Card>
  );
}

function About({ one }: { one: ErasureRequest }) {
  return (
    <Facts
      of={[
        ["Forget", <span key="s" className="wrap">{one.subjects.join(", ")}</span>],
        ["Scope", one.scope],
        ["Ground", one.ground ? GROUNDS[one.ground] : "not said"],
        ["Regulation", one.regulation],
        ["Ticket", one.external_ref ?? "–"],
        ["Method", one.chosen && one.chosen !== one.method ? `${one.method}, which became ${one.chosen}` : one.method],
        ["Guarantee", one.guarantee],
        ["Filed", `${moment(one.created_at)} by ${one.filed_by ? nameOf(one.filed_by) : one.requested_by}`],
        ["Deadline", one.extension ? `${day(one.legal_deadline)}, extended by ${nameOf(one.extension.by)}: ${one.extension.reason}` : day(one.legal_deadline)],
        ["Id", <span key="id" className="row"><code className="wrap">{one.id}</code><Copy text={one.id} /></span>],
        ...(one.duplicate_of ? [["Same as", <Link key="d" to="/requests/$id" params={{ id: one.duplicate_of }}>{short(one.duplicate_of)}</Link>] as [string, React.ReactNode]] : []),
      ]}
    />
  );
}

function Notes({ id }: { id: string }) {
  const queries = useQueryClient();
  const [text, setText] = useState("");
  const list = useQuery({ queryKey: ["erasure", id, "notes"], queryFn: () => everything((cursor) => notes(id, cursor)) });
  const adding = useMutation({
    mutationFn: () => addNote(id, text.trim()),
    onSuccess: () => {
      setText("");
      void queries.invalidateQueries({ queryKey: ["erasure", id, "notes"] });
    },
  });
  return (
    <Card title="Notes">
      <Awaiting query={list}>
        {list.data?.length === 0 && <p className="note">Nobody wrote anything yet.</p>}
        <ul className="plain-list">
          {list.data?.map((one) => (
            <li key={one.id}>
              <p className="wrap">{one.text ?? "It cannot be read any more: its subject was erased."}</p>
              <p className="note">{nameOf(one.by)}, {moment(one.at)}</p>
            </li>
          ))}
        </ul>
      </Awaiting>
      <form onSubmit={(event) => { event.preventDefault(); adding.mutate(); }}>
        <Field label="New note">{(at) => <textarea id={at} rows={2} maxLength={4000} value={text} onChange={(event) => setText(event.target.value)} />}</Field>
        <Trouble error={adding.error} />
        <button type="submit" disabled={!text.trim() || adding.isPending}>Add</button>
      </form>
    </Card>
  );
}

function Extension({ one }: { one: ErasureRequest }) {
  const queries = useQueryClient();
  const [isOpen, setOpen] = useState(false);
  const [until, setUntil] = useState("");
  const [reason, setReason] = useState("");
  const extending = useMutation({
    mutationFn: () => extend(one.id, `${until}T23:59:59Z`, reason.trim()),
    onSuccess: () => {
      setOpen(false);
      void queries.invalidateQueries({ queryKey: ["erasure", one.id] });
    },
  });
  return (
    <>
      <button type="button" onClick={() => setOpen(true)}>Extend the deadline</button>
      <Dialog title="Extend the deadline, once" isOpen={isOpen} onClose={() => setOpen(false)}>
        <form onSubmit={(event) => { event.preventDefault(); extending.mutate(); }}>
          <Field label="Until">{(id) => <input id={id} type="date" required min={one.legal_deadline.slice(0, 10)} value={until} onChange={(event) => setUntil(event.target.value)} />}</Field>
          <Field label="Reason" hint="The requester is told.">{(id, described) => <textarea id={id} aria-describedby={described} required rows={3} maxLength={2000} value={reason} onChange={(event) => setReason(event.target.value)} />}</Field>
          <Trouble error={extending.error} />
          <div className="actions">
            <button type="button" onClick={() => setOpen(false)}>Back</button>
            <button type="submit" className="primary" disabled={extending.isPending}>Extend</button>
          </div>
        </form>
      </Dialog>
    </>
  );
}

function Deliveries({ id }: { id: string }) {
  const query = useQuery({ queryKey: ["erasure", id, "deliveries"], queryFn: () => everything((cursor) => deliveries(id, cursor), 1000) });
  if (!query.data?.length) return query.error ? <Empty>Deliveries cannot be shown: {problemOf(query.error).message}</Empty> : null;
  return (
    <Card title="Deliveries to callbacks">
      <SmallTable
        label="Deliveries"
        head={["To", "Change", "Status", "Attempts", "Last error", "Next attempt"]}
        rows={query.data.map((one) => [<span key="u" className="wrap">{one.url}</span>, one.type, <Status key="s" of={one.status} />, one.attempts, one.error ?? "–", moment(one.next_attempt_at)])}
      />
    </Card>
  );
}
