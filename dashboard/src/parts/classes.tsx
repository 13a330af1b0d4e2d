/** How well each class was known before the fence, at its lowest after it, and now: who forgetting cost most. */
import type { RunSeries, Series } from "../api/operations";
import { counted, share } from "../words";
import { Card } from "./basics";
import { Picture } from "./table";

type Row = { cohort: string; label: string; before: number | null; lowest: number; now: number };

export function Classes({ found }: { found: RunSeries }) {
  const all = found.metrics.filter((one) => one.name.startsWith("accuracy/"));
  const rows = all.map(rowOf);
  const hasFence = found.fences.length > 0;
  const cohorts = new Set(rows.map((row) => row.cohort)).size;
  const worst = [...rows].sort((a, b) => a.now - b.now)[0];
  const nameOf = (row: Row) => (cohorts > 1 ? `${row.cohort}, class ${row.label}` : `class ${row.label}`);
  return (
    <Card title={hasFence ? "Recovery by class" : "Accuracy by class"}>
      <p className="story">
        {counted(rows.length, "class", "classes")} of the validation set. Weakest now: {nameOf(worst)} with {share(worst.now)}.
      </p>
      <Picture label="Accuracy by class" head={["Class", "Before the last fence", "Lowest since", "Now"]} rows={rows.map((row) => [nameOf(row), row.before === null ? "not known any more" : share(row.before), share(row.lowest), share(row.now)])}>
        <div className="bars" role="img" aria-label={`Accuracy by class: ${rows.map((row) => `${nameOf(row)} ${share(row.now)}`).join(", ")}`}>
          {rows.slice(0, 40).map((row) => (
            <div key={`${row.cohort} ${row.label}`} className="bar-row">
              <span className="bar-name" title={nameOf(row)}>{nameOf(row)}</span>
              <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
                <rect className="track" width="100" height="10" />
                <rect className="fill" width={100 * row.now} height="10" />
                {hasFence && <rect className="low" x={Math.max(0, 100 * row.lowest - 0.4)} width="0.8" height="10" />}
                {row.before !== null && <rect className="before" x={Math.max(0, 100 * row.before - 0.4)} width="0.8" height="10" />}
              </svg>
              <span className="bar-value">{share(row.now)}</span>
            </div>
          ))}
        </div>
        <ul className="legend">
          <li><span className="swatch-box fill" /> now</li>
          {hasFence && <li><span className="swatch-box low" /> lowest since the last fence</li>}
          {rows.some((row) => row.before !== null) && <li><span className="swatch-box before" /> before the fence</li>}
        </ul>
      </Picture>
    </Card>
  );
}

/** A fence begins an epoch. Figures of purged models are gone, so what was before may not be known. */
function rowOf(one: Series): Row {
  const epoch = one.points.at(-1)!.epoch;
  const [old, own] = [one.points.filter((point) => point.epoch < epoch), one.points.filter((point) => point.epoch === epoch)];
  const before = old.filter((point) => point.round > 0).at(-1);
  return {
    cohort: one.cohort_name ?? "erased",
    label: one.name.split("/")[1],
    before: before?.value ?? null,
    lowest: Math.min(...own.map((point) => point.value)),
    now: own.at(-1)!.value,
  };
}
