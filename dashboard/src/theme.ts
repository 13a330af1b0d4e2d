/** Dark or light: as the system says, unless somebody chose. Pictures are drawn again when it changes. */
import { useSyncExternalStore } from "react";

export type Theme = "light" | "dark";
const KEY = "lethe-theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();

function chosen(): Theme | null {
  const stored = localStorage.getItem(KEY);
  return stored === "light" || stored === "dark" ? stored : null;
}

function current(): Theme {
  return chosen() ?? (system.matches ? "dark" : "light");
}

function apply(): void {
  document.documentElement.dataset.theme = current();
  listeners.forEach((listener) => listener());
}

export function choose(theme: Theme): void {
  localStorage.setItem(KEY, theme);
  apply();
}

export function useTheme(): Theme {
  return useSyncExternalStore((listener) => {
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, current);
}

system.addEventListener("change", apply);
apply();
