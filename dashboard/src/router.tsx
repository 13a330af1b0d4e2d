/** Which address shows which page. Filters live in the address, so that it can be sent to somebody. */
import {
  createRootRoute, createRoute, createRouter, lazyRouteComponent, Link, Outlet, retainSearchParams,
} from "@tanstack/react-router";
import { address } from "./api/operations";
import { Page, Trouble } from "./parts/basics";
import { Layout, Open } from "./parts/layout";
import { Inbox } from "./pages/inbox";

type Words = Record<string, unknown>;
const text = (value: unknown) => (value === undefined || value === null || value === "" ? undefined : String(value));
const texts = (value: unknown) => {
  const all = (Array.isArray(value) ? value : [value]).map(text).filter((one): one is string => one !== undefined);
  return all.length ? all : undefined;
};

/** Every filter may be absent. */
function filters<T extends object>(read: (search: Words) => T): (search: Words) => Partial<T> {
  return read;
}

const root = createRootRoute({
  component: Outlet,
  validateSearch: (search: Words): { federation?: string } => ({ federation: text(search.federation) }),
  search: { middlewares: [retainSearchParams(["federation"])] },
  errorComponent: ({ error, reset }) => <Trouble error={error} retry={reset} />,
  notFoundComponent: () => (
    <Open>
      <Page title="There is no such page">
        <p>
          <Link to="/">Back to the inbox</Link>
        </p>
      </Page>
    </Open>
  ),
});
const inside = createRoute({
  getParentRoute: () => root,
  id: "inside",
  component: () => (
    <Layout>
      <Outlet />
    </Layout>
  ),
});
const outside = createRoute({
  getParentRoute: () => root,
  id: "outside",
  component: () => (
    <Open>
      <Outlet />
    </Open>
  ),
});

const requests = () => import("./pages/requests");
const inbox = createRoute({ getParentRoute: () => inside, path: "/", component: Inbox });
const requestList = createRoute({
  getParentRoute: () => inside,
  path: "/requests",
  validateSearch: filters((search) => ({
    status: texts(search.status),
    subject: text(search.subject),
    run: text(search.run),
    due_before: text(search.due_before),
    awaiting_my_approval: String(search.awaiting_my_approval) === "true" || undefined,
    sort: text(search.sort),
  })),
  component: lazyRouteComponent(requests, "Requests"),
});
const newRequest = createRoute({
  getParentRoute: () => inside,
  path: "/requests/new",
  validateSearch: filters((search) => ({ subject: texts(search.subject) })),
  component: lazyRouteComponent(() => import("./pages/new-request"), "NewRequest"),
});
const request = createRoute({
  getParentRoute: () => inside,
  path: "/requests/$id",
  component: lazyRouteComponent(() => import("./pages/request"), "Request"),
});
const certificate = createRoute({
  getParentRoute: () => inside,
  path: "/requests/$id/certificate",
  component: lazyRouteComponent(() => import("./pages/certificate"), "Certificate"),
});
const runs = createRoute({
  getParentRoute: () => inside,
  path: "/runs",
  validateSearch: filters((search) => ({ status: text(search.status) })),
  component: lazyRouteComponent(() => import("./pages/runs"), "Runs"),
});
const run = createRoute({
  getParentRoute: () => inside,
  path: "/runs/$id",
  validateSearch: filters((search) => ({
    tab: text(search.tab),
    over: text(search.over),
    task_status: text(search.task_status),
    from: text(search.from),
  })),
  component: lazyRouteComponent(() => import("./pages/run"), "Run"),
});
const cohorts = createRoute({
  getParentRoute: () => inside,
  path: "/runs/$id/cohorts",
  validateSearch: filters((search) => ({ client: text(search.client), request: text(search.request), at: text(search.at) })),
  component: lazyRouteComponent(() => import("./pages/cohorts"), "Cohorts"),
});
const lineage = createRoute({
  getParentRoute: () => inside,
  path: "/checkpoints/$id",
  validateSearch: filters((search) => ({ client: text(search.client) })),
  component: lazyRouteComponent(() => import("./pages/lineage"), "LineageOf"),
});
const workers = createRoute({
  getParentRoute: () => inside,
  path: "/workers",
  validateSearch: filters((search) => ({ status: text(search.status), name: text(search.name), client: text(search.client) })),
  component: lazyRouteComponent(() => import("./pages/workers"), "Workers"),
});
const compare = createRoute({
  getParentRoute: () => inside,
  path: "/compare",
  validateSearch: filters((search) => ({ run: texts(search.run), metric: text(search.metric), over: text(search.over) })),
  component: lazyRouteComponent(() => import("./pages/compare"), "Compare"),
});
const admin = createRoute({
  getParentRoute: () => inside,
  path: "/admin",
  validateSearch: filters((search) => ({ tab: text(search.tab) })),
  component: lazyRouteComponent(() => import("./pages/admin"), "Admin"),
});
const verify = createRoute({
  getParentRoute: () => outside,
  path: "/verify",
  component: lazyRouteComponent(() => import("./pages/verify"), "Verify"),
});

/** Plain addresses: a list is its name several times. */
function parseSearch(search: string): Words {
  const words = new URLSearchParams(search);
  return Object.fromEntries([...new Set(words.keys())].map((name) => [name, words.getAll(name).length > 1 ? words.getAll(name) : words.get(name)]));
}

export const router = createRouter({
  parseSearch,
  stringifySearch: (search) => address("", search as never),
  routeTree: root.addChildren([
    inside.addChildren([
      inbox, requestList, newRequest, request, certificate, runs, run, cohorts, lineage, workers, compare, admin,
    ]),
    outside.addChildren([verify]),
  ]),
  defaultPreload: false,
  defaultPendingMs: 300,
});

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}
