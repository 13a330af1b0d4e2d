/** The federation that the page is about: the credential's own, or for an administrator the one in the address. */
import { createContext, useContext, type ReactNode } from "react";
import { useQuery } from "@tanstack/react-query";
import { useSearch } from "@tanstack/react-router";
import { everything } from "./api/pages";
import { federations, type Federation } from "./api/operations";
import { useMe } from "./session";

type Chosen = { id: string | null; all: Federation[]; isKnown: boolean };
const Chosens = createContext<Chosen>({ id: null, all: [], isKnown: false });

export function FederationProvider({ children }: { children: ReactNode }) {
  const me = useMe();
  const { federation } = useSearch({ strict: false }) as { federation?: string };
  const mayList = me.federation_id === null;
  const list = useQuery({ queryKey: ["federations"], queryFn: () => everything(federations), enabled: mayList });
  const all = (list.data ?? []) as Federation[];
  const chosen = all.find((one) => one.id === federation || one.name === federation) ?? all[0];
  const id = me.federation_id ?? chosen?.id ?? null;
  return <Chosens value={{ id, all, isKnown: !mayList || !list.isPending }}>{children}</Chosens>;
}

export function useFederations(): Chosen {
  return useContext(Chosens);
}

/** Of a page that is shown only when there is one. */
export function useFederation(): string {
  const { id } = useContext(Chosens);
  if (id === null) throw new Error("there is no federation yet");
  return id;
}
