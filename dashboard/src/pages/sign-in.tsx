/** Signing in: a token becomes a session of this browser, or the organisation's own login does. */
import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { openId } from "../api/operations";
import { Command, Field, Page, Trouble } from "../parts/basics";
import { useSession } from "../session";

export function SignInForm({ isInDialog = false }: { isInDialog?: boolean }) {
  const { signIn } = useSession();
  const [token, setToken] = useState("");
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  const provider = useQuery({ queryKey: ["openid"], queryFn: openId, staleTime: Infinity });

  const form = (
    <form
      className="narrow"
      onSubmit={(event) => {
        event.preventDefault();
        setBusy(true);
        setError(null);
        signIn(token.trim())
          .catch(setError)
          .finally(() => setBusy(false));
      }}
    >
      {provider.data?.enabled && (
        <p>
          <a className="button" href={`/v1/openid/start?return_to=${encodeURIComponent(location.pathname + location.search)}`}>
            Sign in with {provider.data.name}
          </a>
        </p>
      )}
      <Field label="Token" hint="It is exchanged for a session of this browser, and kept nowhere on this page.">
        {(id, described) => (
          <input
            id={id}
            aria-describedby={described}
            type="password"
            autoComplete="off"
            required
            value={token}
            onChange={(event) => setToken(event.target.value)}
          />
        )}
      </Field>
      <Trouble error={error} />
      <button type="submit" className="primary" disabled={isBusy || !token.trim()}>
        {isBusy ? "Signing in …" : "Sign in"}
      </button>
    </form>
  );
  if (isInDialog) return form;
  return (
    <Page title="Sign in" note="For those who run a federation, decide about requests, or hold data in it.">
      {form}
      <h2>No token?</h2>
      <p>On the machine of the coordinator, the first token is in its home directory. With it, others are issued:</p>
      <Command>lethe credentials create --role compliance --label "Dr. Weber"</Command>
    </Page>
  );
}
