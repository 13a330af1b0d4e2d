/** The frame around every page: where to go, whether the page is live, who is signed in. */
import { useState, type ReactNode } from "react";
import { Link, useNavigate, useRouterState } from "@tanstack/react-router";
import { FederationProvider, useFederations } from "../federation";
import { LiveProvider, useLive, type LiveState } from "../live";
import { useMe, useSession } from "../session";
import { choose, useTheme } from "../theme";
import { SignInForm } from "../pages/sign-in";
import { Dialog, Empty, Loading, Status } from "./basics";
import { Icon, Mark } from "./icon";

export function Layout({ children }: { children: ReactNode }) {
  const { me, isKnown, hasEnded } = useSession();
  if (!isKnown) return <Loading />;
  if (me === null)
    return (
      <Open>
        <SignInForm />
      </Open>
    );
  return (
    <FederationProvider>
      <Frame>{children}</Frame>
      <Dialog title="Your session has ended" isOpen={hasEnded} onClose={() => undefined} mayClose={false}>
        <p>Sign in again to go on. What you typed on this page is still there.</p>
        <SignInForm isInDialog />
      </Dialog>
    </FederationProvider>
  );
}

/** A page that needs no login. */
export function Open({ children }: { children: ReactNode }) {
  return (
    <>
      <Skip />
      <header className="top">
        <Link to="/" className="brand">
          <Mark /> Lethe
        </Link>
        <nav aria-label="Main" className="grow">
          <Link to="/verify">Verify a certificate</Link>
        </nav>
        <ThemeButton />
      </header>
      <main id="main" tabIndex={-1}>
        {children}
      </main>
    </>
  );
}

function Skip() {
  return (
    <a className="skip" href="#main">
      Skip to the content
    </a>
  );
}

function Frame({ children }: { children: ReactNode }) {
  const { id, isKnown } = useFederations();
  const { can } = useSession();
  const me = useMe();
  const isAtAdmin = useRouterState({ select: (state) => state.location.pathname.startsWith("/admin") });
  const follows = can("read") ? id : null;
  return (
    <LiveProvider federation={follows}>
      <Skip />
      <header className="top">
        <Link to="/" className="brand">
          <Mark /> Lethe
        </Link>
        <FederationChoice />
        <span className="grow" />
        {follows !== null && <Liveness />}
        <ThemeButton />
        <Account />
      </header>
      <div className="columns">
        <Navigation isHolder={me.client_id !== null} />
        <main id="main" tabIndex={-1}>
          {!isKnown ? (
            <Loading />
          ) : id === null && !isAtAdmin ? (
            <Empty command="lethe federations create hospitals">
              There is no federation yet. Make one on <Link to="/admin">Admin</Link>, or with the command.
            </Empty>
          ) : (
            children
          )}
        </main>
      </div>
    </LiveProvider>
  );
}

const PAGES = [
  ["/", "Inbox", "any", "inbox"],
  ["/requests", "Requests", "any", "list"],
  ["/requests/new", "New request", "file", "plus"],
  ["/runs", "Runs", "read", "run"],
  ["/workers", "Workers", "read", "chip"],
  ["/compare", "Compare", "read", "chart"],
  ["/verify", "Verify", "any", "shield"],
  ["/admin", "Admin", "read", "gear"],
] as const;

function Navigation({ isHolder }: { isHolder: boolean }) {
  const { can } = useSession();
  const may = (need: string) => need === "any" || can(need as "file") || (isHolder && need === "file");
  return (
    <nav aria-label="Main" className="side">
      <ul>
        {PAGES.filter(([, , need]) => may(need)).map(([path, name, , icon]) => (
          <li key={path}>
            <Link to={path} activeOptions={{ exact: path === "/" || path.startsWith("/requests"), includeSearch: false }} activeProps={{ "aria-current": "page" }}>
              <Icon of={icon} /> {name}
            </Link>
          </li>
        ))}
      </ul>
      <p className="note">
        <a href="/docs">API</a>
      </p>
    </nav>
  );
}

function FederationChoice() {
  const { id, all } = useFederations();
  const navigate = useNavigate();
  if (all.length < 2) return all[0] ? <span className="federation">{all[0].name}</span> : null;
  return (
    <label className="federation">
      <span className="hidden">Federation</span>
      <select
        value={id ?? ""}
        onChange={(event) => void navigate({ to: "/", search: { federation: event.target.value } as never })}
      >
        {all.map((one) => (
          <option key={one.id} value={one.id}>
            {one.name}
          </option>
        ))}
      </select>
    </label>
  );
}

const LIVENESS: Record<LiveState, [status: string, word: string]> = {
  off: ["never", "Not live"],
  connecting: ["pending", "Connecting"],
  live: ["live", "Live"],
  broken: ["broken", "Reconnecting"],
};

function Liveness() {
  const [status, word] = LIVENESS[useLive()];
  return (
    <span role="status" className="liveness">
      <Status of={status} word={word} />
    </span>
  );
}

function ThemeButton() {
  const theme = useTheme();
  const other = theme === "dark" ? "light" : "dark";
  return (
    <button type="button" className="small" onClick={() => choose(other)}>
      <Icon of={other === "dark" ? "moon" : "sun"} /> {other === "dark" ? "Dark" : "Light"}
    </button>
  );
}

function Account() {
  const me = useMe();
  const { signOut } = useSession();
  const [isBusy, setBusy] = useState(false);
  const name = me.person ?? me.client_name ?? me.label;
  return (
    <span className="account">
      <span className="who">
        {name && <strong>{name}</strong>} <span className="note">{me.role}</span>
      </span>
      <button
        type="button"
        className="small"
        disabled={isBusy}
        onClick={() => {
          setBusy(true);
          void signOut().finally(() => setBusy(false));
        }}
      >
        Sign out
      </button>
    </span>
  );
}
