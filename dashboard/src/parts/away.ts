/** Who is here, and for whom a run waits. Every page asks once for the workers of the federation, and all share the answer. */
import { useQuery, useQueryClient, type UseQueryResult } from "@tanstack/react-query";
import { tasks, workers, type Task, type Worker } from "../api/operations";
import { everything } from "../api/pages";
import { useFederation } from "../federation";

const MANY = 400;
const [OFTEN_MS, SELDOM_MS] = [10_000, 60_000];
const MOST_TASKS = 400;

/** Shown page after page the first time; afterwards the old answer stays until the new one is whole. */
export function useWorkers(): UseQueryResult<Worker[]> {
  const federation = useFederation();
  const queries = useQueryClient();
  const key = ["workers", federation];
  return useQuery({
    queryKey: key,
    staleTime: OFTEN_MS,
    refetchInterval: (query) => ((query.state.data?.length ?? 0) > MANY ? SELDOM_MS : OFTEN_MS),
    queryFn: () => {
      const isFirst = queries.getQueryData(key) === undefined;
      return everything((cursor) => workers(federation, cursor), undefined, (some) => isFirst && queries.setQueryData(key, some));
    },
  });
}

export type Awaited = { task: Task; worker: Worker };

/** Open tasks of the run whose workers are not here. */
export function useAwaited(runId: string, isOpen: boolean): Awaited[] {
  const all = useWorkers();
  const open = useQuery({
    queryKey: ["run", runId, "open-tasks"],
    enabled: isOpen,
    refetchInterval: OFTEN_MS,
    queryFn: async () => {
      const [ready, leased] = await Promise.all((["ready", "leased"] as const).map((status) => everything((cursor) => tasks(runId, status, cursor), MOST_TASKS)));
      return [...ready, ...leased];
    },
  });
  if (!isOpen || !open.data?.length) return [];
  const away = new Map((all.data ?? []).filter((one) => one.status === "away" || one.status === "never").map((one) => [one.client_id, one]));
  return open.data.flatMap((task) => (away.has(task.client_id) ? [{ task, worker: away.get(task.client_id)! }] : []));
}
