/** A table that stays quick with ten thousand rows: only those in view are in the document. */
import { useEffect, useRef, useState, type ReactNode } from "react";
import { useVirtualizer } from "@tanstack/react-virtual";
import { Empty, Loading, Trouble } from "./basics";
import { Icon } from "./icon";

export type Column<T> = {
  name: string;
  cell: (row: T) => ReactNode;
  isNumber?: boolean;
  sort?: string;
};

type Props<T> = {
  label: string;
  columns: Column<T>[];
  rows: T[];
  keyOf: (row: T) => string;
  empty?: ReactNode;
  isLoading?: boolean;
  error?: unknown;
  retry?: () => void;
  more?: () => void;
  isMore?: boolean;
  sort?: string;
  onSort?: (sort: string) => void;
};

const ROW_PX = 37;
const AHEAD = 30;

export function Table<T>(props: Props<T>) {
  const { label, columns, rows, keyOf, more, isMore } = props;
  const frame = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => frame.current,
    estimateSize: () => ROW_PX,
    overscan: 8,
    initialRect: { width: 1000, height: 640 },
  });
  const shown = virtual.getVirtualItems().filter(({ index }) => index < rows.length); // of before there were fewer
  const last = shown.at(-1)?.index ?? 0;
  useEffect(() => {
    if (more && last >= rows.length - AHEAD) more();
  }, [last, rows.length, more]);

  if (props.error && rows.length === 0) return <Trouble error={props.error} retry={props.retry} />;
  if (props.isLoading) return <Loading />;
  if (rows.length === 0) return <>{props.empty ?? <Empty>Nothing here.</Empty>}</>;
  const before = shown[0]?.start ?? 0;
  const after = virtual.getTotalSize() - (shown.at(-1)?.end ?? 0);
  return (
    <div className="scroll" ref={frame} tabIndex={0} role="region" aria-label={label}>
      <table aria-rowcount={isMore ? -1 : rows.length + 1}>
        <caption className="hidden">{label}</caption>
        <thead>
          <tr>
            {columns.map((column) => (
              <Head key={column.name} column={column} sort={props.sort} onSort={props.onSort} />
            ))}
          </tr>
        </thead>
        <tbody>
          {before > 0 && <Gap height={before} span={columns.length} />}
          {shown.map(({ index }) => (
            <tr key={keyOf(rows[index])} aria-rowindex={index + 2} data-index={index} ref={virtual.measureElement}>
              {columns.map((column) => (
                <td key={column.name} className={column.isNumber ? "number" : undefined}>
                  {column.cell(rows[index])}
                </td>
              ))}
            </tr>
          ))}
          {after > 0 && <Gap height={after} span={columns.length} />}
        </tbody>
      </table>
      {isMore && <p className="note inset">More rows follow as you scroll.</p>}
    </div>
  );
}

function Gap({ height, span }: { height: number; span: number }) {
  return (
    <tr aria-hidden="true" className="gap">
      <td colSpan={span} style={{ height }} />
    </tr>
  );
}

function Head<T>({ column, sort, onSort }: { column: Column<T>; sort?: string; onSort?: (sort: string) => void }) {
  const key = column.sort;
  if (key === undefined || onSort === undefined)
    return (
      <th scope="col" className={column.isNumber ? "number" : undefined}>
        {column.name}
      </th>
    );
  const direction = sort === key ? "ascending" : sort === `-${key}` ? "descending" : undefined;
  return (
    <th scope="col" aria-sort={direction ?? "none"} className={column.isNumber ? "number" : undefined}>
      <button type="button" className="plain" onClick={() => onSort(direction === "ascending" ? `-${key}` : key)}>
        {column.name} <Icon of={direction === "ascending" ? "up" : direction === "descending" ? "down" : "sort"} />
      </button>
    </th>
  );
}

/** A table beside a picture: the same facts, in words. */
export function SmallTable({ label, head, rows }: { label: string; head: string[]; rows: ReactNode[][] }) {
  return (
    <div className="scroll short" tabIndex={0} role="region" aria-label={label}>
      <table>
        <caption className="hidden">{label}</caption>
        <thead>
          <tr>
            {head.map((name) => (
              <th key={name} scope="col">
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, i) => (
            <tr key={i}>
              {row.map((value, j) => (
                <td key={j}>{value}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const MOST_IN_A_SMALL_TABLE = 1000;

/** Every picture has its table. */
export function Picture({ label, children, head, rows }: { label: string; children: ReactNode; head: string[]; rows: ReactNode[][] }) {
  const [isOpen, setOpen] = useState(false);
  const left = rows.length - MOST_IN_A_SMALL_TABLE;
  return (
    <figure>
      {children}
      <figcaption>
        <details onToggle={(event) => setOpen(event.currentTarget.open)}>
          <summary>{label}, as a table</summary>
          {isOpen && <SmallTable label={label} head={head} rows={rows.slice(0, MOST_IN_A_SMALL_TABLE)} />}
          {left > 0 && <p className="note">{left} further rows are not shown.</p>}
        </details>
      </figcaption>
    </figure>
  );
}
