/** For a client who left: its certificate, once. The secret is behind the # of the address, which no server sees; it is
 * spent by a click, because programs that scan mail follow links. */
import { useState } from "react";
import { useMutation } from "@tanstack/react-query";
import { openHandOver } from "../api/operations";
import { download } from "../csv";
import { Card, Empty, Facts, Page, Trouble } from "../parts/basics";
import { Verification } from "../parts/verification";

function bytesOf(content: unknown): Uint8Array {
  return new TextEncoder().encode(typeof content === "string" ? content : JSON.stringify(content) + "\n");
}

export function HandOver() {
  const [[id, secret]] = useState(() => location.hash.slice(1).split("."));
  const opening = useMutation({ mutationFn: () => openHandOver(id, secret) });
  const held = opening.data;
  const saveAs = (name: string, part: unknown) => download(name, bytesOf(part) as BlobPart, "application/json");
  return (
    <Page title="Your certificate" note="It says what was forgotten, how, and what that does not cover.">
      {!id || !secret ? (
        <Empty>This link is not whole. Ask whoever sent it for a new one.</Empty>
      ) : held === undefined ? (
        <Card>
          <p>The link opens once. Save what you get: it is not shown again.</p>
          <Trouble error={opening.error} />
          <button type="button" className="primary" disabled={opening.isPending} onClick={() => opening.mutate()}>
            Open it now
          </button>
        </Card>
      ) : (
        <Card title="Save these">
          <div className="actions">
            {Object.entries(held).filter(([, part]) => part !== null).map(([name, part]) => (
              <button key={name} type="button" onClick={() => saveAs(name.includes("key") ? `${name}.pem` : `${name}.json`, part)}>
                Save {name.replaceAll("_", " ")}
              </button>
            ))}
          </div>
          {held.certificate != null && typeof (held.public_key ?? held.key) === "string" ? (
            <Verification certificate={bytesOf(held.certificate)} keys={String(held.public_key ?? held.key)} areOwn={false} typed="" />
          ) : (
            <Facts of={[["Parts", Object.keys(held).join(", ")]]} />
          )}
        </Card>
      )}
    </Page>
  );
}
