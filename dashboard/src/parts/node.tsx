/** A part of a picture that can be chosen by mouse and by keyboard. */
import type { ReactNode } from "react";

export function Node({ x, y, label, className, onChoose, children }: {
  x: number; y: number; label: string; className: string; onChoose: () => void; children: ReactNode;
}) {
  return (
    <g
      className={`node ${className}`}
      transform={`translate(${x},${y})`}
      role="button"
      tabIndex={0}
      aria-label={label}
      onClick={onChoose}
      onKeyDown={(event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        onChoose();
      }}
    >
      <title>{label}</title>
      {children}
    </g>
  );
}
