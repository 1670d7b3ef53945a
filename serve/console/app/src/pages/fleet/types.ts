/** Live status of a job's processes, and sentences that describe it. */

import { seconds } from "../../lib/format";
import type { JobStatus } from "../../lib/types";

export interface WorkInProgress {
  trace_id: string;
  stage: string;
  duration_s: number;
}

export interface Actor {
  name: string;
  work: WorkInProgress[];
  silent_s: number;
}

export interface Engine {
  name: string;
  state: "waiting" | "starting" | "offloaded" | "ready";
  rollouts: number;
}

export interface Endpoint {
  name: string;
  limit: number;
  in_flight: number;
  queued: number;
  breaker: "closed" | "half_open" | "open";
  down_s: number | null;
  delayed_calls: number;
  calls: number;
  failed: number;
  retries: number;
  recent_s: number;
  recent_calls: number;
  recent_errors: Record<string, number>;
  errors: Record<string, number>;
  latency_p50_s: number | null;
  latency_p95_s: number | null;
}

export interface LiveStatus {
  fine_tuning_job_id: string;
  status: JobStatus;
  age_s: number | null;
  engines: Engine[];
  actors: Actor[];
  endpoints: Endpoint[];
}

/** Process that a rollout waits for, by stage. */
const WAITS_FOR: Record<string, string> = {
  "tool calls": "a tool",
  "session start": "the session server",
  grading: "the grader",
  "weight update": "new weights",
};

const SILENT_S = 15;

export function isRank(actor: Actor): boolean {
  return actor.name.includes("rank");
}

/** Return a sentence for each current wait; empty if nothing waits. */
export function waits(now: LiveStatus): string[] {
  const found: string[] = [];
  const inFlight = now.engines.reduce((sum, engine) => sum + engine.rollouts, 0);
  const ranks = now.actors.filter(isRank);
  const busy = ranks.flatMap((rank) => rank.work);
  if (now.engines.some((engine) => engine.state === "waiting")) found.push("An engine waits for free resources in the cluster.");
  if (now.engines.some((engine) => engine.state === "offloaded")) found.push("The engines wait for the learner, which is using their GPUs.");
  if (ranks.length > 0 && busy.length === 0 && inFlight > 0)
    found.push(`The learner waits for the rollouts of the next batch; ${inFlight} are in flight.`);
  for (const [stage, whom] of Object.entries(WAITS_FOR)) {
    const here = now.actors.flatMap((actor) => actor.work).filter((one) => one.stage === stage);
    const longest = Math.max(0, ...here.map((one) => one.duration_s));
    if (here.length > 0) found.push(`Rollouts wait for ${whom}, the longest for ${seconds(longest)}.`);
  }
  for (const endpoint of now.endpoints) {
    if (endpoint.breaker !== "closed") found.push(`${endpoint.name} fails: its breaker lets only probes through.`);
    else if (endpoint.queued > 0) found.push(`${endpoint.queued} calls are queued at ${endpoint.name}.`);
  }
  for (const actor of now.actors)
    if (actor.silent_s >= SILENT_S) found.push(`${actor.name} has not answered for ${seconds(actor.silent_s)}.`);
  return found;
}
