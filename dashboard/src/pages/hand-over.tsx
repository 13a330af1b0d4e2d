/** For a client who left: its certificate, once. The secret is behind the # of the address, which no server sees; it is
 * spent by a click, because programs that scan mail follow links. */
import { useMemo, useState } from "react";
import { useMutation } from "@tanstack/react-query";
import { openHandOver, type HandedOver } from "../api/operations";
import { download } from "../csv";
import { Card, Empty, Page, Trouble } from "../parts/basics";
import { Verification } from "../parts/verification";

export function HandOver() {
  const [[id, secret]] = useState(() => location.hash.slice(1).split("."));
  const opening = useMutation({ mutationFn: () => openHandOver(id, secret) });
  return (
    <Page title="Your certificate" note="It says what was forgotten, how, and what that does not cover.">
      {!id || !secret ? (
        <Empty>This link is not whole. Ask whoever sent it for a new one.</Empty>
      ) : opening.data === undefined ? (
        <Card>
          <p>The link opens once. Save what you get: it is not shown again.</p>
          <Trouble error={opening.error} />
          <button type="button" className="primary" disabled={opening.isPending} onClick={() => opening.mutate()}>
            Open it now
          </button>
        </Card>
      ) : (
        <Handed over={opening.data} />
      )}
    </Page>
  );
}

function Handed({ over }: { over: HandedOver }) {
  const certificate = useMemo(() => new TextEncoder().encode(over.certificate), [over]);
  const files: [name: string, label: string, content: string | null, type: string][] = [
    ["certificate.html", "the certificate as a page", over.page, "text/html"],
    ["certificate.json", "the certificate", over.certificate, "application/vnd.in-toto+json"],
    ["artefacts.jsonl", "the list of artefacts", over.artefacts, "application/jsonl"],
    ["opening.json", "what shows whom it is about", over.opening, "application/json"],
    ["lethe.pub.pem", "the public key", over.public_key, "application/x-pem-file"],
  ];
  return (
    <Card title="Save these">
      <div className="actions">
        {files.map(([name, label, content, type]) => content !== null && (
          <button key={name} type="button" onClick={() => download(name, content, type)}>
            Save {label}
          </button>
        ))}
      </div>
      <Verification certificate={certificate} keys={over.public_key} areOwn={false} typed="" />
    </Card>
  );
}
