/** Those who take part, their credentials, keys, storage, and how the installation is. */
import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { getRouteApi } from "@tanstack/react-router";
import {
  acts, changeFederation, clients, createFederation, credentials, enrol, federation as getFederation, issue, keys, removeClient, revoke, rotate,
  system, type Client, type Credential, type CredentialCreate, type IssuedCredential,
} from "../api/operations";
import { usePages } from "../api/pages";
import { useFederation, useFederations } from "../federation";
import { Awaiting, Card, Copy, Dialog, Empty, Facts, Field, Page, Status, Tabs, Trouble } from "../parts/basics";
import { KitOf } from "../parts/kit";
import { Shares } from "../parts/shares";
import { SmallTable, Table, type Column } from "../parts/table";
import { useSession } from "../session";
import { ago, bytes, count, day, moment, sentence, short } from "../words";

const route = getRouteApi("/inside/admin");
const TABS = [["clients", "Clients"], ["credentials", "Credentials"], ["federation", "Federation"], ["acts", "Acts"], ["incentives", "Incentives"], ["keys", "Keys"], ["system", "System"]] as const;
type Tab = (typeof TABS)[number][0];

export function Admin() {
  const { tab = "clients" } = route.useSearch() as { tab?: Tab };
  const { id } = useFederations();
  const { can } = useSession();
  const navigate = route.useNavigate();
  const tabs = TABS.filter(([name]) => (name === "credentials" || name === "system" ? can("administer") : name === "acts" ? can("approve") : true));
  return (
    <Page title="Admin">
      <Tabs label="Parts" tabs={tabs} now={tab} onChange={(next) => void navigate({ search: (before: object) => ({ ...before, tab: next }) as never, replace: true })}>
        {tab === "keys" ? <Keys /> : tab === "system" ? <SystemHealth /> : id === null ? <NewFederation /> : (
          <>
            {tab === "clients" && <Clients />}
            {tab === "credentials" && <Credentials />}
            {tab === "federation" && <Federation />}
            {tab === "acts" && <Acts />}
            {tab === "incentives" && <Shares />}
          </>
        )}
      </Tabs>
    </Page>
  );
}

function useRefresh() {
  const queries = useQueryClient();
  return () => void queries.invalidateQueries();
}

function Clients() {
  const federation = useFederation();
  const { can } = useSession();
  const refresh = useRefresh();
  const [name, setName] = useState("");
  const [issued, setIssued] = useState<IssuedCredential | null>(null);
  const [leaving, setLeaving] = useState<Client | null>(null);
  const list = usePages(["federation", federation, "clients"], (cursor) => clients(federation, cursor));
  const enrolling = useMutation({ mutationFn: () => enrol(federation, name.trim()), onSuccess: (made) => { setIssued(made); setName(""); refresh(); } });
  const rotating = useMutation({ mutationFn: (client: Client) => rotate(client.id).then((made) => ({ ...made, client })), onSuccess: setIssued });
  const removing = useMutation({ mutationFn: (client: Client) => removeClient(client.id), onSuccess: () => { setLeaving(null); refresh(); } });
  const columns: Column<Client>[] = [
    { name: "Client", cell: (one) => <span className="clip narrow-clip" title={one.name}>{one.name}</span> },
    { name: "Status", cell: (one) => <Status of={one.status} /> },
    { name: "Worker", cell: (one) => one.status === "erased" ? "–" : <Status of={one.online ? "waiting" : one.last_seen_at ? "away" : "never"} word={one.online ? "Here" : one.last_seen_at ? "Away" : "Never seen"} /> },
    { name: "Last seen", cell: (one) => <span className="once" title={moment(one.last_seen_at)}>{ago(one.last_seen_at)}</span> },
    { name: "Version", cell: (one) => one.agent_version ?? "–" },
    { name: "Enrolled", cell: (one) => day(one.created_at) },
    ...(can("train") ? [{ name: "Change", cell: (one: Client) => one.status === "active" && (
      <span className="row">
        <button type="button" className="small" disabled={rotating.isPending} aria-label={`New kit for ${one.name}`} onClick={() => rotating.mutate(one)}>New kit</button>
        <button type="button" className="small" aria-label={`Remove ${one.name}`} onClick={() => setLeaving(one)}>Remove</button>
      </span>
    ) }] : []),
  ];
  return (
    <>
      {can("train") && (
        <form className="filters" aria-label="Enrol a client" onSubmit={(event) => { event.preventDefault(); enrolling.mutate(); }}>
          <Field label="Name of a new client">{(id) => <input id={id} required value={name} onChange={(event) => setName(event.target.value)} />}</Field>
          <button type="submit" className="primary lifted" disabled={!name.trim() || enrolling.isPending}>Enrol</button>
        </form>
      )}
      <Trouble error={enrolling.error ?? rotating.error} />
      <Table label="Clients" columns={columns} rows={list.items} keyOf={(one) => one.id} isLoading={list.isLoading} error={list.error} retry={list.retry} more={list.more} isMore={list.isMore} empty={<Empty command="lethe clients kit hospital-a">Nobody is enrolled yet. To enrol a client with all it needs:</Empty>} />
      <Dialog title={`Kit of ${issued?.client?.name ?? ""}`} isOpen={issued !== null} onClose={() => setIssued(null)}>
        {issued?.client && <KitOf client={issued.client.name} token={issued.token} onClose={() => setIssued(null)} />}
      </Dialog>
      <Dialog title={`Remove ${leaving?.name ?? ""}?`} isOpen={leaving !== null} onClose={() => setLeaving(null)}>
        <p>It takes part in nothing any more. What it contributed stays: to forget that, file a request.</p>
        <Trouble error={removing.error} />
        <div className="actions">
          <button type="button" onClick={() => setLeaving(null)}>Back</button>
          <button type="button" className="danger" disabled={removing.isPending} onClick={() => leaving && removing.mutate(leaving)}>Remove</button>
        </div>
      </Dialog>
    </>
  );
}

const ROLES: CredentialCreate["role"][] = ["viewer", "operator", "compliance", "admin"];

function Credentials() {
  const federation = useFederation();
  const refresh = useRefresh();
  const [role, setRole] = useState<CredentialCreate["role"]>("compliance");
  const [label, setLabel] = useState("");
  const [made, setMade] = useState<IssuedCredential | null>(null);
  const list = usePages(["federation", federation, "credentials"], (cursor) => credentials(federation, cursor));
  const issuing = useMutation({ mutationFn: () => issue(federation, { role, label: label.trim() }), onSuccess: (issued) => { setMade(issued); setLabel(""); refresh(); } });
  const revoking = useMutation({ mutationFn: (id: string) => revoke(id), onSuccess: refresh });
  const columns: Column<Credential>[] = [
    { name: "Label", cell: (one) => one.label || short(one.id) },
    { name: "Role", cell: (one) => one.role },
    { name: "Issued", cell: (one) => moment(one.created_at) },
    { name: "Status", cell: (one) => <Status of={one.revoked_at ? "revoked" : "active"} /> },
    { name: "Change", cell: (one) => !one.revoked_at && one.role !== "client" && <button type="button" className="small" aria-label={`Revoke ${one.label || short(one.id)}`} onClick={() => revoking.mutate(one.id)}>Revoke</button> },
  ];
  return (
    <>
      <form className="filters" aria-label="Issue a credential" onSubmit={(event) => { event.preventDefault(); issuing.mutate(); }}>
        <Field label="Whose">{(id) => <input id={id} value={label} maxLength={100} onChange={(event) => setLabel(event.target.value)} />}</Field>
        <Field label="Role">{(id) => <select id={id} value={role} onChange={(event) => setRole(event.target.value as typeof role)}>{ROLES.map((one) => <option key={one}>{one}</option>)}</select>}</Field>
        <button type="submit" className="primary lifted" disabled={issuing.isPending}>Issue</button>
      </form>
      <Trouble error={issuing.error ?? revoking.error} />
      <Table label="Credentials" columns={columns} rows={list.items} keyOf={(one) => one.id} isLoading={list.isLoading} error={list.error} more={list.more} isMore={list.isMore} empty={<Empty command="lethe credentials create --role viewer">No credential was issued yet.</Empty>} />
      <Dialog title="A new credential" isOpen={made !== null} onClose={() => setMade(null)}>
        <p>The token is shown now and never again.</p>
        {made && <p className="row"><code className="wrap">{made.token}</code><Copy text={made.token} /></p>}
        <button type="button" onClick={() => setMade(null)}>Close</button>
      </Dialog>
    </>
  );
}

type FourEyes = "off" | "asked" | "all";
const FOUR_EYES: Record<FourEyes, string> = { off: "off: whoever may approve, may approve", asked: "for requests that ask for approval", all: "for every request" };

function Federation() {
  const id = useFederation();
  const { can } = useSession();
  const queries = useQueryClient();
  const query = useQuery({ queryKey: ["federation", id], queryFn: () => getFederation(id) });
  const changing = useMutation({ mutationFn: (four_eyes: FourEyes) => changeFederation(id, { four_eyes }), onSuccess: (now) => queries.setQueryData(["federation", id], now) });
  const one = query.data;
  return (
    <>
      <Card title={one?.name ?? "Federation"}>
        <Awaiting query={query}>
          {one && <Facts of={[["Id", <code key="i">{one.id}</code>], ["Since", moment(one.created_at)], ["Clients are divided by", one.allocation ? JSON.stringify(one.allocation) : "nothing: every client serves every run"]]} />}
          <Field label="Four eyes" hint="Somebody else than who filed a request has to approve it.">
            {(at, described) => (
              <select id={at} aria-describedby={described} disabled={!can("administer") || changing.isPending} value={one?.four_eyes ?? "off"} onChange={(event) => changing.mutate(event.target.value as FourEyes)}>
                {Object.entries(FOUR_EYES).map(([name, words]) => <option key={name} value={name}>{words}</option>)}
              </select>
            )}
          </Field>
          <Trouble error={changing.error} />
        </Awaiting>
      </Card>
      {can("administer") && <NewFederation />}
    </>
  );
}

function NewFederation() {
  const { all } = useFederations();
  const refresh = useRefresh();
  const [name, setName] = useState("");
  const making = useMutation({ mutationFn: () => createFederation(name.trim()), onSuccess: () => { setName(""); refresh(); } });
  return (
    <Card title={all.length ? "Another federation" : "The first federation"}>
      <form className="filters" onSubmit={(event) => { event.preventDefault(); making.mutate(); }}>
        <Field label="Name of the new federation">{(id) => <input id={id} required value={name} onChange={(event) => setName(event.target.value)} />}</Field>
        <button type="submit" className="primary lifted" disabled={!name.trim() || making.isPending}>Create</button>
      </form>
      <Trouble error={making.error} />
    </Card>
  );
}

function Acts() {
  const federation = useFederation();
  const list = usePages(["federation", federation, "acts"], (cursor) => acts(federation, cursor));
  const said = (act: (typeof list.items)[number], what: string) =>
    act.entry.parts.map((part, i) => (part.says === what ? ((act.opened?.[i] as { content?: { name?: string } } | null)?.content?.name ?? "unreadable") : null)).filter(Boolean).join(", ");
  return (
    <Table
      label="The log of acts"
      rows={list.items}
      keyOf={(one) => String(one.entry.seq)}
      isLoading={list.isLoading}
      error={list.error}
      more={list.more}
      isMore={list.isMore}
      empty={<Empty command="lethe acts list">Nothing was done here yet, or it is not linked into the log yet.</Empty>}
      columns={[
        { name: "Number", isNumber: true, cell: (one) => one.entry.seq },
        { name: "When", cell: (one) => moment(one.entry.at) },
        { name: "What", cell: (one) => one.entry.act },
        { name: "Who", cell: (one) => said(one, "who") || "–" },
        { name: "Whom", cell: (one) => said(one, "whom") || "–" },
      ]}
    />
  );
}

function Keys() {
  const query = useQuery({ queryKey: ["keys"], queryFn: keys });
  return (
    <Card title="Keys that certificates are signed with">
      <p className="note">Tell others the fingerprint on another way than this page: on paper, by telephone, in a contract.</p>
      <Awaiting query={query}>
        <SmallTable label="Keys" head={["Fingerprint", "From", "Until"]} rows={(query.data ?? []).map((one) => [<span key="k" className="row"><code className="wrap">{one.key_id}</code><Copy text={one.key_id} /></span>, moment(one.from), one.until ? moment(one.until) : "signs now"])} />
      </Awaiting>
    </Card>
  );
}

function SystemHealth() {
  const { all } = useFederations();
  const query = useQuery({ queryKey: ["system"], queryFn: system, refetchInterval: 10_000 });
  const one = query.data;
  const name = (id: string) => all.find((federation) => federation.id === id)?.name ?? short(id);
  return (
    <Awaiting query={query}>
      {one && (
        <>
          <div className="pair">
            <Card title="Installation">
              <Facts
                of={[
                  ["Version", one.version], ["Started", `${moment(one.started_at)} (${ago(one.started_at)})`],
                  ["Database", <span key="d">{one.database.kind}, revision {one.database.revision} <Status of={one.database.ok ? "ok" : "down"} /></span>],
                  ["Redis", one.redis ? <Status key="r" of={one.redis.ok ? "ok" : "down"} /> : "not used"],
                  ["Blobs", `${count(one.blobs.objects)} in ${one.blobs.kind}, ${bytes(one.blobs.bytes)}`],
                  ["Jobs", Object.entries(one.queue.jobs_by_status).map(([status, number]) => `${number} ${status}`).join(", ") || "none"],
                  ["Signs with", one.keys.signing_key_id ? <code key="k" className="wrap">{one.keys.signing_key_id}</code> : "–"],
                ]}
              />
            </Card>
            <Card title="Storage">
              <SmallTable label="Storage" head={["Federation", "Used", "Quota"]} rows={one.storage_by_federation.map((part) => [name(part.federation_id), bytes(part.bytes), part.quota_bytes == null ? "none" : bytes(part.quota_bytes)])} />
            </Card>
          </div>
          <Card title="Background work">
            <SmallTable label="Background work" head={["What", "State", "Since", "Restarts", "Why"]} rows={one.background.map((work) => [sentence(work.name), <Status key="s" of={work.state === "up" ? "ok" : "down"} word={sentence(work.state)} />, moment(work.since), work.restarts, work.reason ?? "–"])} />
          </Card>
        </>
      )}
    </Awaiting>
  );
}
