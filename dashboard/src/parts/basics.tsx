/** Small parts that every page uses. */
import { useEffect, useId, useRef, useState, type ReactNode } from "react";
import { problemOf } from "../api/client";
import { sentence } from "../words";
import { Icon, type IconName } from "./icon";

export type Tone = "good" | "busy" | "unsure" | "bad" | "quiet";

const STATUSES: Record<string, [icon: IconName, tone: Tone]> = {
  received: ["ring", "busy"], awaiting_approval: ["clock", "unsure"], fenced: ["fence", "busy"], executing: ["work", "busy"],
  verifying: ["search", "busy"], completed: ["check", "good"], denied: ["ban", "quiet"], cancelled: ["ban", "quiet"],
  failed: ["cross", "bad"], requires_action: ["alert", "bad"], running: ["work", "busy"], paused: ["pause", "unsure"],
  waiting: ["dot", "good"], working: ["work", "busy"], away: ["cross", "bad"], never: ["dash", "quiet"], active: ["check", "good"],
  removed: ["ban", "quiet"], erased: ["fence", "quiet"], pending: ["ring", "busy"], delivered: ["check", "good"], ready: ["ring", "busy"],
  standby: ["pause", "quiet"], leased: ["work", "busy"], done: ["check", "good"], ok: ["check", "good"], revoked: ["fence", "quiet"],
  open: ["work", "busy"], closed: ["check", "good"], abandoned: ["ban", "quiet"], down: ["cross", "bad"], live: ["dot", "good"],
  broken: ["cross", "unsure"],
};

/** An icon, a word and a colour: none of them alone. */
export function Status({ of, word, title }: { of: string; word?: string; title?: string }) {
  const [icon, tone] = STATUSES[of] ?? ["question", "quiet"];
  return <Chip icon={icon} tone={tone} word={word ?? sentence(of)} title={title} />;
}

export function Chip({ icon, tone, word, title }: { icon: IconName; tone: Tone; word: string; title?: string }) {
  return (
    <span className={`status ${tone}`} title={title}>
      <Icon of={icon} /> {word}
    </span>
  );
}

export function Page({ title, note, actions, children }: { title: string; note?: ReactNode; actions?: ReactNode; children: ReactNode }) {
  useEffect(() => {
    document.title = `${title} · Lethe`;
  }, [title]);
  return (
    <>
      <header className="page-head">
        <div>
          <h1>{title}</h1>
          {note && <p className="note">{note}</p>}
        </div>
        {actions && <div className="actions">{actions}</div>}
      </header>
      {children}
    </>
  );
}

export function Card({ title, children, tone, actions }: { title?: string; children: ReactNode; tone?: Tone; actions?: ReactNode }) {
  return (
    <section className={`card ${tone ?? ""}`}>
      {title && (
        <div className="card-head">
          <h2>{title}</h2>
          {actions}
        </div>
      )}
      {children}
    </section>
  );
}

/** Nothing is here yet: what to type next. */
export function Empty({ children, command }: { children: ReactNode; command?: string }) {
  return (
    <div className="empty">
      <p>{children}</p>
      {command && <Command>{command}</Command>}
    </div>
  );
}

export function Command({ children }: { children: string }) {
  return (
    <div className="command">
      <code>{children}</code>
      <Copy text={children} />
    </div>
  );
}

export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  const [isDone, setDone] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setDone(true);
    } catch {
      // No clipboard over plain HTTP: the text is on the page, to be marked by hand.
    }
  };
  return (
    <button type="button" className="small" onClick={() => void copy()}>
      {isDone ? "Copied" : label}
    </button>
  );
}

export function Trouble({ error, retry }: { error: unknown; retry?: () => void }) {
  if (error == null) return null;
  const problem = problemOf(error);
  return (
    <div className="trouble" role="alert">
      <strong>{problem.title || "That did not work"}</strong>
      <p>{problem.message}</p>
      {problem.errors.length > 0 && (
        <ul>
          {problem.errors.map((one, i) => (
            <li key={i}>{String(one.detail ?? one.message ?? one.msg ?? JSON.stringify(one))}</li>
          ))}
        </ul>
      )}
      {retry && (
        <button type="button" onClick={retry}>
          Try again
        </button>
      )}
    </div>
  );
}

export function Loading({ what = "Loading" }: { what?: string }) {
  return (
    <p className="note" role="status">
      {what} …
    </p>
  );
}

type Asked = { isPending: boolean; error: unknown; refetch: () => unknown };

/** What a page shows while an answer is on its way, or when it does not come. Old answers stay while new ones fail. */
export function Awaiting({ query, children }: { query: Asked & { data?: unknown }; children?: ReactNode }) {
  if (query.data === undefined && query.error) return <Trouble error={query.error} retry={() => void query.refetch()} />;
  if (query.isPending) return <Loading />;
  return <>{children}</>;
}

export function Field({ label, hint, children }: { label: string; hint?: ReactNode; children: (id: string, described?: string) => ReactNode }) {
  const id = useId();
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      {children(id, hint ? `${id}-hint` : undefined)}
      {hint && (
        <p className="note" id={`${id}-hint`}>
          {hint}
        </p>
      )}
    </div>
  );
}

export function Facts({ of }: { of: [string, ReactNode][] }) {
  return (
    <dl className="facts">
      {of.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** The browser's own dialog: it keeps the focus inside, and Escape closes it. */
export function Dialog({ title, isOpen, onClose, children, mayClose = true }: {
  title: string; isOpen: boolean; onClose: () => void; children: ReactNode; mayClose?: boolean;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const at = dialog.current;
    if (isOpen && at && !at.open) at.showModal();
    if (!isOpen && at?.open) at.close();
  }, [isOpen]);
  return (
    <dialog
      ref={dialog}
      aria-labelledby={id}
      onClose={onClose}
      onCancel={(event) => {
        if (!mayClose) event.preventDefault();
      }}
    >
      {isOpen && (
        <>
          <h2 id={id}>{title}</h2>
          {children}
        </>
      )}
    </dialog>
  );
}

export function Tabs<T extends string>({ label, tabs, now, onChange, children }: {
  label: string; tabs: readonly (readonly [T, string])[]; now: T; onChange: (tab: T) => void; children: ReactNode;
}) {
  const id = useId();
  const move = (by: number) => {
    const at = tabs.findIndex(([name]) => name === now);
    const next = tabs[(at + by + tabs.length) % tabs.length][0];
    onChange(next);
    document.getElementById(`${id}-${next}`)?.focus();
  };
  return (
    <>
      <div className="tabs" role="tablist" aria-label={label}>
        {tabs.map(([name, title]) => (
          <button
            key={name}
            id={`${id}-${name}`}
            type="button"
            role="tab"
            aria-selected={name === now}
            aria-controls={`${id}-panel`}
            tabIndex={name === now ? 0 : -1}
            onClick={() => onChange(name)}
            onKeyDown={(event) => {
              if (event.key === "ArrowRight") move(1);
              if (event.key === "ArrowLeft") move(-1);
            }}
          >
            {title}
          </button>
        ))}
      </div>
      <div role="tabpanel" id={`${id}-panel`} aria-labelledby={`${id}-${now}`} tabIndex={-1}>
        {children}
      </div>
    </>
  );
}

/** One of a few, side by side. */
export function Switch<T extends string>({ label, options, now, onChange }: {
  label: string; options: readonly (readonly [T, string])[]; now: T; onChange: (next: T) => void;
}) {
  const name = useId();
  return (
    <fieldset className="switch">
      <legend>{label}</legend>
      <div>
        {options.map(([value, word]) => (
          <label key={value}>
            <input type="radio" name={name} checked={value === now} onChange={() => onChange(value)} />
            <span>{word}</span>
          </label>
        ))}
      </div>
    </fieldset>
  );
}

export function Bar({ value, of, label }: { value: number; of: number; label: string }) {
  return (
    <progress max={Math.max(of, 1)} value={Math.min(value, Math.max(of, 1))} aria-label={label}>
      {value} of {of}
    </progress>
  );
}
