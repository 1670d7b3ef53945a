/** URL fragment as a path and a query: `#/jobs/ftjob-1/rollouts?step=3`. */

import type { Query } from "./api";

class Route {
  path: string[] = $state([]);
  query: URLSearchParams = $state.raw(new URLSearchParams());

  constructor() {
    this.#read();
    window.addEventListener("hashchange", () => this.#read());
  }

  #read(): void {
    const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
    this.path = path.split("/").filter(Boolean).map(decoded);
    this.query = new URLSearchParams(query);
  }
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // the user typed a `%`
  }
}

export const route = new Route();

/** Return the URL of a page: `href(["jobs", id, "rollouts"], { step: 3 })`. */
export function href(path: string[], query: Query = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text && `?${text}`}`;
}

/** Open a page. With `replace`, the back button skips the previous page (while a filter is typed). */
export function go(path: string[], query: Query = {}, replace = false): void {
  const url = href(path, query);
  if (!replace) location.hash = url;
  else {
    history.replaceState(null, "", url);
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  }
}

/** Return the values of a pattern's names (`["jobs", ":id"]`) in a path, or null if the path does not match. */
export function match(pattern: string[], path: string[]): Record<string, string> | null {
  if (pattern.length !== path.length) return null;
  const found: Record<string, string> = {};
  for (const [index, part] of pattern.entries()) {
    const given = path[index] ?? "";
    if (part.startsWith(":")) found[part.slice(1)] = given;
    else if (part !== given) return null;
  }
  return found;
}
