/** Signs as drawings: no font of the reader's machine has to know them. Each is drawn in a square of 16. */

const DRAWINGS = {
  alert: "M8 3.5v5.2M8 12v.1",
  ban: "M8 1.8a6.2 6.2 0 1 1 0 12.4A6.2 6.2 0 0 1 8 1.8zM3.7 3.7l8.6 8.6",
  check: "M3 8.6l3.3 3.3L13 4.6",
  chart: "M2 2v12h12M4.5 11l3-4 2.5 2L14 4",
  chip: "M4.5 4.5h7v7h-7zM6.5 2v2.5M9.5 2v2.5M6.5 11.5V14M9.5 11.5V14M2 6.5h2.5M2 9.5h2.5M11.5 6.5H14M11.5 9.5H14",
  clock: "M8 1.8a6.2 6.2 0 1 1 0 12.4A6.2 6.2 0 0 1 8 1.8zM8 4.6V8l2.4 1.6",
  columns: "M2.5 2.5h11v11h-11zM8 2.5v11",
  cross: "M4 4l8 8M12 4l-8 8",
  dash: "M4 8h8",
  diamond: "M8 2.5L13.5 8 8 13.5 2.5 8z",
  dot: "M8 5.2a2.8 2.8 0 1 1 0 5.6 2.8 2.8 0 0 1 0-5.6z",
  down: "M4 6.5l4 4 4-4",
  drop: "M8 1.8c2.6 3.2 4.2 5.3 4.2 7.7a4.2 4.2 0 0 1-8.4 0c0-2.4 1.6-4.5 4.2-7.7z",
  fence: "M3.5 2.5v11M8 2.5v11M12.5 2.5v11M1.5 5.5h13M1.5 10.5h13",
  gear: "M8 5.7a2.3 2.3 0 1 1 0 4.6 2.3 2.3 0 0 1 0-4.6zM8 1.5v2.2M8 12.3v2.2M1.5 8h2.2M12.3 8h2.2M3.4 3.4L5 5M11 11l1.6 1.6M3.4 12.6L5 11M11 5l1.6-1.6",
  inbox: "M2 9.5L4 3h8l2 6.5V13H2zM2 9.5h3.5c0 1.4 1 2.3 2.5 2.3s2.5-.9 2.5-2.3H14",
  list: "M5.5 4H14M5.5 8H14M5.5 12H14M2.2 4h.1M2.2 8h.1M2.2 12h.1",
  moon: "M13.2 9.6A5.8 5.8 0 0 1 6.4 2.8a5.8 5.8 0 1 0 6.8 6.8z",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  plus: "M8 3v10M3 8h10",
  question: "M5.6 5.8a2.4 2.4 0 1 1 3.6 2.1c-.8.5-1.2.9-1.2 1.8M8 12.4v.1",
  restart: "M3.2 6.2A5.3 5.3 0 1 1 2.7 9M2.6 2.6v3.8h3.8",
  rewind: "M7.5 3.5L3 8l4.5 4.5M13 3.5L8.5 8l4.5 4.5",
  ring: "M8 2.4a5.6 5.6 0 1 1 0 11.2A5.6 5.6 0 0 1 8 2.4z",
  run: "M4.5 2.8v10.4L13 8z",
  search: "M7 2.2a4.8 4.8 0 1 1 0 9.6 4.8 4.8 0 0 1 0-9.6zM10.6 10.6L14 14",
  shield: "M8 1.8l5 1.9v4c0 3.1-2 5.3-5 6.5-3-1.2-5-3.4-5-6.5v-4zM5.7 7.9l1.7 1.7 3-3.2",
  sort: "M5 6.5L8 3.5l3 3M5 9.5l3 3 3-3",
  sun: "M8 5.2a2.8 2.8 0 1 1 0 5.6 2.8 2.8 0 0 1 0-5.6zM8 1.2v1.6M8 13.2v1.6M1.2 8h1.6M13.2 8h1.6M3.2 3.2l1.1 1.1M11.7 11.7l1.1 1.1M3.2 12.8l1.1-1.1M11.7 4.3l1.1-1.1",
  up: "M4 9.5l4-4 4 4",
  work: "M13.4 6.5A5.6 5.6 0 0 0 3 5.2M2.6 9.5A5.6 5.6 0 0 0 13 10.8M3 2.4v2.9h2.9M13 13.6v-2.9h-2.9",
} as const;

export type IconName = keyof typeof DRAWINGS;
/** What is filled as well. */
const SOLID: ReadonlySet<IconName> = new Set(["dot", "run", "diamond"]);

export function Icon({ of }: { of: IconName }) {
  return (
    <svg className={SOLID.has(of) ? "icon solid" : "icon"} viewBox="0 0 16 16" aria-hidden="true">
      <path d={DRAWINGS[of]} />
    </svg>
  );
}

/** The same within a drawing, with its middle at the given place. */
export function IconAt({ of, x, y, size = 14 }: { of: IconName; x: number; y: number; size?: number }) {
  const scale = size / 16;
  return <path className={SOLID.has(of) ? "sign solid" : "sign"} transform={`translate(${x - size / 2},${y - size / 2}) scale(${scale})`} d={DRAWINGS[of]} />;
}

/** The river of forgetfulness. */
export function Mark() {
  return (
    <svg className="mark" viewBox="0 0 24 24" aria-hidden="true">
      <rect width="24" height="24" rx="6" />
      <path d="M4.5 9c2.5-2.6 5-2.6 7.5 0s5 2.6 7.5 0M4.5 15c2.5-2.6 5-2.6 7.5 0s5 2.6 7.5 0" />
    </svg>
  );
}
