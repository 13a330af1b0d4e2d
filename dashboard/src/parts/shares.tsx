/** How clients were divided among jobs, period after period. */
import { useQuery } from "@tanstack/react-query";
import { periods, type Period } from "../api/operations";
import { everything } from "../api/pages";
import { useFederation } from "../federation";
import { Awaiting, Card, Empty } from "./basics";
import { Chart, type Line } from "./chart";

export function Shares() {
  const federation = useFederation();
  const query = useQuery({ queryKey: ["federation", federation, "periods"], queryFn: () => everything((cursor) => periods(federation, cursor), 2000) });
  return (
    <Card title="Shares of the jobs">
      <Awaiting query={query}>
        {query.data?.length ? (
          <Chart label="Shares of clients by period" unit="fraction" over="period" lines={linesOf(query.data)} marks={[]} />
        ) : (
          <Empty command="lethe incentives set --strategy NAME">Clients are not divided among jobs here. To have them divided:</Empty>
        )}
      </Awaiting>
    </Card>
  );
}

function linesOf(all: Period[]): Line[] {
  const names = new Map(all.flatMap((period) => period.jobs.map((job) => [job.id, job.name] as const)));
  const sorted = [...all].sort((a, b) => a.number - b.number);
  return [...names].map(([id, name]) => ({
    name,
    points: sorted.flatMap((period): [number, number][] => {
      const served = Object.values(period.serves);
      return served.length ? [[period.number, served.filter((job) => job === id).length / served.length]] : [];
    }),
  }));
}
