/** A certificate for people: as the coordinator writes it for everybody, with its verification in this browser. */
import { useEffect, useRef, useState } from "react";
import { useMutation, useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { artefacts, certificate, certificatePage, discovery, handOver } from "../api/operations";
import { download } from "../csv";
import { Awaiting, Card, Command, Copy, Dialog, Field, Page, Trouble } from "../parts/basics";
import { BEYOND, Verification } from "../parts/verification";
import { useMe, useSession } from "../session";
import { moment, short } from "../words";

const route = getRouteApi("/inside/requests/$id/certificate");

export function Certificate() {
  const { id } = route.useParams();
  const page = useQuery({ queryKey: ["erasure", id, "page"], queryFn: () => certificatePage(id) });
  const bytes = useQuery({ queryKey: ["erasure", id, "certificate"], queryFn: () => certificate(id) });
  const found = useQuery({ queryKey: ["discovery"], queryFn: discovery });
  const [typed, setTyped] = useState("");
  const saveArtefacts = async () => download("artefacts.jsonl", await artefacts(id), "application/jsonl");
  return (
    <Page
      title={`Certificate of request ${short(id)}`}
      note={<Link to="/requests/$id" params={{ id }}>The request</Link>}
      actions={
        bytes.data && (
          <span className="actions no-print">
            <button type="button" onClick={() => window.print()}>Print</button>
            <button type="button" onClick={() => download("certificate.json", bytes.data as BlobPart, "application/vnd.in-toto+json")}>Save the certificate</button>
            <button type="button" onClick={() => page.data && download("certificate.html", page.data, "text/html")}>Save as a page</button>
            <button type="button" onClick={() => void saveArtefacts().catch(() => undefined)}>Save the list of artefacts</button>
            {found.data && <button type="button" onClick={() => download("lethe.pub.pem", found.data.public_key, "application/x-pem-file")}>Save the public key</button>}
            <HandOverButton id={id} />
          </span>
        )
      }
    >
      <Awaiting query={page}>{page.data && <Written page={page.data} />}</Awaiting>
      {bytes.data && found.data && (
        <Card title="Verified in this browser">
          <Field label="Fingerprint of the coordinator’s key, as you got it elsewhere">
            {(id) => <input id={id} spellCheck={false} autoComplete="off" value={typed} onChange={(event) => setTyped(event.target.value)} />}
          </Field>
          <Verification certificate={bytes.data} keys={found.data.public_key} areOwn={false} typed={typed} />
          <p className="note">{BEYOND}</p>
          <Command>lethe verify certificate.json --key lethe.pub.pem --replay</Command>
        </Card>
      )}
    </Page>
  );
}

/** The sections of the page that the coordinator wrote. It is parsed, never run: scripts and styles stay behind. */
function Written({ page }: { page: string }) {
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const body = page.slice(page.indexOf("<main>"), page.lastIndexOf("</main>"));
    const main = new DOMParser().parseFromString(body, "text/html").querySelector("main");
    main?.querySelectorAll("h1, #verification, pre").forEach((one) => one.remove());
    main?.querySelectorAll(".wide").forEach((one, i) => {
      one.setAttribute("tabindex", "0");
      one.setAttribute("role", "region");
      one.setAttribute("aria-label", `Table ${i + 1}`);
    });
    place.current?.replaceChildren(...(main?.childNodes ?? []));
  }, [page]);
  return <div className="written" ref={place} />;
}

function HandOverButton({ id }: { id: string }) {
  const { can } = useSession();
  const me = useMe();
  const [isOpen, setOpen] = useState(false);
  const making = useMutation({ mutationFn: () => handOver(id), onMutate: () => setOpen(true) });
  if (me.client_id !== null || !(can("approve") || can("train"))) return null;
  const link = making.data ? new URL(making.data.url, location.origin).href : "";
  return (
    <>
      <button type="button" onClick={() => making.mutate()}>Hand over</button>
      <Dialog title="A link for the client who left" isOpen={isOpen} onClose={() => { setOpen(false); making.reset(); }}>
        <Trouble error={making.error} />
        {making.data && (
          <>
            <p>It opens once, after a click, until {moment(making.data.expires_at)}. It is shown now and never again.</p>
            <p className="row"><code className="wrap">{link}</code><Copy text={link} /></p>
          </>
        )}
        <div className="actions"><button type="button" onClick={() => { setOpen(false); making.reset(); }}>Close</button></div>
      </Dialog>
    </>
  );
}
