/** What a data holder needs to join. The token is shown once: the coordinator keeps its hash only. */
import { download } from "../csv";
import { Copy } from "./basics";

export function KitOf({ client, token, onClose }: { client: string; token: string; onClose: () => void }) {
  const command = `lethe worker --coordinator ${location.origin} --token-file ${client}.token --data npz:/data/scans.npz`;
  return (
    <>
      <p>Give these to {client}, on a way that nobody else reads. The token is shown now and never again.</p>
      <h3>Token, as {client}.token</h3>
      <p className="row"><code className="wrap">{token}</code><Copy text={token} /></p>
      <h3>Command</h3>
      <p className="row"><code className="wrap">{command}</code><Copy text={command} /></p>
      <p className="note">Behind a certificate of your own authority, add --ca-file ca.pem. The same as one archive: lethe clients kit {client}.</p>
      <div className="actions">
        <button type="button" className="primary" onClick={() => download(`${client}.token`, `${token}\n`, "text/plain")}>Save the token</button>
        <button type="button" onClick={() => download("compose.yaml", composeOf(client), "application/yaml")}>Save compose.yaml</button>
        <button type="button" onClick={onClose}>Close</button>
      </div>
    </>
  );
}

function composeOf(client: string): string {
  return `# docker compose up -d; the container's user is 10002: it must be able to read the token and the data.
services:
  worker:
    image: lethe-worker
    restart: unless-stopped
    read_only: true
    tmpfs: [/tmp]
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    stop_grace_period: 60s
    command: [worker, --coordinator, ${JSON.stringify(location.origin)}, --token-file, /run/secrets/token, --data, "npz:/data/a.npz"]
    volumes:
      - ${JSON.stringify(`./${client}.token:/run/secrets/token:ro`)}
      - "./data:/data:ro"
      - "state:/var/lib/lethe"
volumes:
  state: {}
`;
}
