/** Pages by their URL patterns. */

import type { Component } from "svelte";
import Compare from "./pages/Compare.svelte";
import Fleet from "./pages/Fleet.svelte";
import Job from "./pages/Job.svelte";
import Jobs from "./pages/Jobs.svelte";
import Keys from "./pages/Keys.svelte";
import Models from "./pages/Models.svelte";
import NewJob from "./pages/NewJob.svelte";
import OneReadiness from "./pages/OneReadiness.svelte";
import Readiness from "./pages/Readiness.svelte";
import Rollout from "./pages/Rollout.svelte";
import Rollouts from "./pages/Rollouts.svelte";
import Row from "./pages/Row.svelte";
import SideBySide from "./pages/SideBySide.svelte";

/** Properties of each page: the values of its pattern's names (`:id`), and the query. */
export interface PageProps {
  params: Record<string, string>;
  query: URLSearchParams;
}

export interface PageRoute {
  pattern: string[];
  page: Component<PageProps>;
  title: string;
}

export const PAGES: PageRoute[] = [
  { pattern: [], page: Jobs, title: "Jobs" },
  { pattern: ["jobs"], page: Jobs, title: "Jobs" },
  { pattern: ["jobs", "new"], page: NewJob, title: "New job" },
  { pattern: ["jobs", ":id"], page: Job, title: "Job" },
  { pattern: ["jobs", ":id", "rollouts"], page: Rollouts, title: "Rollouts" },
  { pattern: ["jobs", ":id", "rollouts", ":rollout"], page: Rollout, title: "Rollout" },
  { pattern: ["jobs", ":id", "rows", ":row"], page: Row, title: "Row" },
  { pattern: ["jobs", ":id", "side-by-side"], page: SideBySide, title: "Side by side" },
  { pattern: ["readiness"], page: Readiness, title: "Readiness checks" },
  { pattern: ["readiness", ":id"], page: OneReadiness, title: "Readiness check" },
  { pattern: ["compare"], page: Compare, title: "Comparison" },
  { pattern: ["fleet"], page: Fleet, title: "Live status" },
  { pattern: ["models"], page: Models, title: "Models" },
  { pattern: ["keys"], page: Keys, title: "Keys" },
];

/** Pages in the navigation bar; `server` pages are hidden in a read-only console. */
export const BAR = [
  { path: "jobs", label: "Jobs", server: false },
  { path: "readiness", label: "Readiness", server: true },
  { path: "compare", label: "Comparison", server: true },
  { path: "fleet", label: "Live status", server: false },
  { path: "models", label: "Models", server: true },
  { path: "keys", label: "Keys", server: true },
];
