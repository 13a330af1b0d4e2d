/** Who is signed in. A session that ends while a page is open is mended above the page, which keeps what was typed. */
import { createContext, useCallback, useContext, useEffect, useMemo, useState, type ReactNode } from "react";
import { useQueryClient } from "@tanstack/react-query";
import { onEndOfSession } from "./api/client";
import { closeSession, openSession, whoAmI, type Me } from "./api/operations";

export type Permission = "approve" | "file" | "administer" | "train" | "read";

type Session = {
  me: Me | null;
  isKnown: boolean;
  hasEnded: boolean;
  can: (what: Permission) => boolean;
  signIn: (token: string) => Promise<void>;
  signOut: () => Promise<void>;
};

const Sessions = createContext<Session | null>(null);

export function SessionProvider({ children }: { children: ReactNode }) {
  const queries = useQueryClient();
  const [me, setMe] = useState<Me | null>(null);
  const [isKnown, setKnown] = useState(false);
  const [hasEnded, setEnded] = useState(false);

  useEffect(() => {
    onEndOfSession(() => setEnded(true));
    whoAmI()
      .then(setMe, () => setMe(null))
      .finally(() => {
        setEnded(false);
        setKnown(true);
      });
  }, []);

  const signIn = useCallback(
    async (token: string) => {
      const found = await openSession(token);
      setMe(found);
      setEnded(false);
      await queries.invalidateQueries();
    },
    [queries],
  );
  const signOut = useCallback(async () => {
    await closeSession();
    setMe(null);
    setEnded(false);
    queries.clear();
  }, [queries]);

  const session = useMemo<Session>(
    () => ({ me, isKnown, hasEnded: hasEnded && me !== null, can: (what) => me?.can.includes(what) ?? false, signIn, signOut }),
    [me, isKnown, hasEnded, signIn, signOut],
  );
  return <Sessions value={session}>{children}</Sessions>;
}

export function useSession(): Session {
  const session = useContext(Sessions);
  if (session === null) throw new Error("there is no session around this part of the page");
  return session;
}

/** Of a page that only somebody signed in sees. */
export function useMe(): Me {
  const { me } = useSession();
  if (me === null) throw new Error("nobody is signed in");
  return me;
}
