/** Anybody may verify a certificate here: nothing is sent anywhere. */
import { useEffect, useState } from "react";
import { bytesOfBase64 } from "../../../services/audit/pages/verify.js";
import { Card, Command, Field, Page } from "../parts/basics";
import { BEYOND, Verification } from "../parts/verification";

type Held = { certificate: Uint8Array | null; name: string; keys: string; areOwn: boolean };
const NOTHING: Held = { certificate: null, name: "", keys: "", areOwn: false };

export function Verify() {
  const [held, setHeld] = useState<Held>(NOTHING);
  const [typed, setTyped] = useState("");
  const take = async (files: Iterable<File>) => {
    let next = held;
    for (const file of files) next = taken(next, file.name, new Uint8Array(await file.arrayBuffer()));
    setHeld(next);
  };
  useEffect(() => {
    const over = (event: DragEvent) => event.preventDefault();
    const drop = (event: DragEvent) => {
      event.preventDefault();
      void take(event.dataTransfer?.files ?? []);
    };
    document.addEventListener("dragover", over);
    document.addEventListener("drop", drop);
    return () => {
      document.removeEventListener("dragover", over);
      document.removeEventListener("drop", drop);
    };
  });
  return (
    <Page title="Verify a certificate" note="The certificate stays in this browser: nothing is sent anywhere.">
      <Card title="What to verify">
        <Field label="Drop a certificate here (certificate.json, or the HTML page of one), and the issuer’s public key (.pem) if you have it">
          {(id) => <input id={id} type="file" multiple onChange={(event) => void take(event.target.files ?? [])} />}
        </Field>
        <Field label="Fingerprint of the coordinator’s key (sha256:…), or the public key itself, as you got it elsewhere" hint="On paper, by telephone, from a contract, or from the operator’s own site. From this page it would prove nothing.">
          {(id, described) => <textarea id={id} aria-describedby={described} rows={3} spellCheck={false} autoComplete="off" value={typed} onChange={(event) => setTyped(event.target.value)} />}
        </Field>
      </Card>
      <Card title="Outcome">
        {held.certificate === null ? <p>No certificate yet.</p> : <Verification certificate={held.certificate} keys={held.keys} areOwn={held.areOwn} typed={typed} />}
      </Card>
      <Card title="What goes beyond">
        <p>{BEYOND}</p>
        <Command>lethe verify certificate.json --key lethe.pub.pem --replay</Command>
        <p>
          The same check as one file that needs no coordinator: <a href="/verify.html" download>verify.html</a>. Keep it as your own: a page that is
          served by whoever signed is worth as much as they are.
        </p>
      </Card>
    </Page>
  );
}

/** What a file brings: a certificate, the page of one with its key, or a key of the reader's own. */
function taken(held: Held, name: string, bytes: Uint8Array): Held {
  const text = new TextDecoder().decode(bytes);
  const page = /<pre id="envelope" hidden>([A-Za-z0-9+/=]+)<\/pre>/.exec(text);
  if (page) {
    const keys = /<pre id="keys" hidden>([A-Za-z0-9+/=]*)<\/pre>/.exec(text);
    const own = keys && !held.areOwn ? { keys: new TextDecoder().decode(bytesOfBase64(keys[1])) } : {};
    return { ...held, ...own, name, certificate: bytesOfBase64(page[1]) };
  }
  if (text.includes("BEGIN PUBLIC KEY")) return { ...held, keys: text, areOwn: true };
  return { ...held, name, certificate: bytes };
}
