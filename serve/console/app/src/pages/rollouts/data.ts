/** Rollouts of the API, and functions that read them; docs/reference/api.md describes the fields. */

import { all, ApiError, get, page } from "../../lib/api";
import type { Query } from "../../lib/api";
import { seconds } from "../../lib/format";
import type { JobEvent, Message, Page } from "../../lib/types";

export type Finish = "answer" | "max_steps" | "max_tokens" | "context" | "timeout" | "discarded";

export interface Summary {
  id: string;
  file: string;
  step: number | null;
  trace_id: string;
  row_id: string;
  sample: number;
  grade: number | null;
  reward: number | null;
  finish: Finish;
  tools: string[];
  errors: string[];
  num_calls: number | null;
  num_sampled: number | null;
  wall_s: number | null;
  answer: string;
}

export interface Call {
  call_id: string;
  name: string;
  arguments: string;
}

export interface Result {
  call_id: string;
  output: string;
  error: string | null;
  latency_s: number;
  retries: number;
  truncated: boolean;
}

export interface Turn {
  start: number;
  stop: number;
  text: string;
  calls: Call[];
  results: Result[];
  model_s: number;
  segment: number;
}

/** `versions` and `loss_mask` are run lengths: [value, number of tokens]. */
export interface Segment {
  num_tokens: number;
  versions: [number, number][];
  loss_mask: [boolean, number][];
}

export interface Grade {
  value: number;
  scores: Record<string, number>;
  latency_s: number;
  guard: string | null;
  reason: string;
  held_out: number | null;
  judge_tokens: Record<string, number>;
  train: boolean;
}

export interface Graded {
  kind: "rollout";
  trace_id: string;
  row_id: string;
  sample: number;
  attempt: number;
  segments: Segment[];
  turns: Turn[];
  answer: string;
  finish: Exclude<Finish, "discarded">;
  grade: Grade;
  reward: number;
  reasoning_tokens: number;
  wall_s: number;
}

export interface Discarded {
  kind: "discarded";
  trace_id: string;
  row_id: string;
  sample: number;
  reason: string;
}

export interface LoadedRollout {
  id: string;
  file: string;
  request: {
    task: { row_id: string; messages: Message[]; tools: unknown[]; item: Record<string, unknown> };
    epoch: number;
    purpose: string;
    temperature: number;
    size: number;
  };
  rollout: Graded | Discarded;
}

export interface Token {
  id: number;
  text: string | null;
  logprob: number | null;
  version: number | null;
}

export interface Tokens {
  start: number;
  num_tokens: number;
  tokens: Token[];
}

export interface RowRewards {
  id: string;
  num_rollouts: number;
  num_discarded: number;
  mean: number | null;
  min: number | null;
  max: number | null;
  bins: number[];
  range: [number, number];
}

export interface Filters {
  files: { name: string; step: number | null; num_rollouts: number }[];
  tools: string[];
  errors: string[];
}

const job = (id: string): string => `/fine_tuning/jobs/${encodeURIComponent(id)}`;

export function filtersOf(jobId: string): Promise<Filters> {
  return retryWhileIndexing(() => get(`${job(jobId)}/rollout_filters`));
}

export function summaries(jobId: string, query: Query, signal: AbortSignal | null = null): Promise<Page<Summary>> {
  return retryWhileIndexing(() => page(`${job(jobId)}/rollouts`, { ...query, view: "summary" }, signal));
}

/** Return the rollouts of a row, oldest first, in one file or in all files. */
export function ofRow(jobId: string, row: string, file: string | null = null): Promise<Summary[]> {
  const query = { row, file, view: "summary", order: "oldest", limit: 100 };
  return retryWhileIndexing(() => all<Summary>(`${job(jobId)}/rollouts`, query, 1_000));
}

export function rowRewards(jobId: string, query: Query): Promise<Page<RowRewards>> {
  return retryWhileIndexing(() => page(`${job(jobId)}/row_rewards`, query));
}

export function rollout(jobId: string, id: string): Promise<LoadedRollout> {
  return retryWhileIndexing(() => get(`${job(jobId)}/rollouts/${encodeURIComponent(id)}`));
}

export function tokens(jobId: string, id: string, segment: number, start: number, limit: number): Promise<Tokens> {
  return retryWhileIndexing(() => get(`${job(jobId)}/rollouts/${encodeURIComponent(id)}/tokens`, { segment, start, limit }));
}

/** Return the last step that had finished at a time in Unix seconds, such as a dashboard's; null before the first. */
export async function stepAt(jobId: string, time: number): Promise<number | null> {
  let after: string | null = null;
  do {
    const found: Page<JobEvent> = await page(`${job(jobId)}/events`, { limit: 1_000, after }); // newest first
    const done = found.data.find((event) => event.type === "metrics" && event.created_at <= time);
    if (done) return Number(done.data?.["step"]);
    after = found.has_more ? found.last_id : null;
  } while (after !== null);
  return null;
}

const TRIES = 12;

/** Retry while the server is still indexing the rollouts, such as at the first request for an older run. */
async function retryWhileIndexing<T>(ask: () => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries++) {
    try {
      return await ask();
    } catch (error) {
      const waitS = error instanceof ApiError && error.code === "not_ready" ? error.retryAfterS : null;
      if (waitS === null || tries === TRIES) throw error;
      await new Promise((done) => setTimeout(done, 1000 * waitS));
    }
  }
}

/** Split a turn into reasoning and text. Calls are removed from the text unless they are malformed. */
export function splitText(turn: Turn): { reasoning: string; text: string } {
  const end = turn.text.lastIndexOf("</think>");
  const reasoning = end < 0 ? "" : turn.text.slice(0, end).replaceAll("<think>", "").trim();
  let text = end < 0 ? turn.text : turn.text.slice(end + "</think>".length);
  if (turn.calls.length > 0 && turn.results.every((result) => result.error !== "malformed_call"))
    text = text.replace(/<tool_call>[^]*?(<\/tool_call>|$)/g, "");
  return { reasoning, text: text.trim() };
}

/** Return the policy versions that sampled the tokens `start:stop` of a segment, such as "3" or "3–4". */
export function versionsOf(segment: Segment | undefined, start = 0, stop = Infinity): string {
  const found: number[] = [];
  let at = 0;
  for (const [version, count] of segment?.versions ?? []) {
    if (version >= 0 && at < stop && at + count > start) found.push(version);
    at += count;
  }
  const [low, high] = [Math.min(...found), Math.max(...found)];
  if (found.length === 0) return "none";
  return low === high ? `${low}` : `${low}–${high}`;
}

export function sampledOf(rollout: Graded): number {
  const runs = rollout.segments.flatMap((segment) => segment.loss_mask);
  return runs.reduce((sum, [sampled, count]) => sum + (sampled ? count : 0), 0);
}

export function callNote(result: Result): string {
  const retries = result.retries > 0 ? `${result.retries} ${result.retries === 1 ? "retry" : "retries"}` : "";
  return [seconds(result.latency_s), retries, result.truncated ? "truncated for the model" : ""].filter(Boolean).join(", ");
}

/** Return the display name of a file: "step 12", "validation at step 5", "test after". */
export function fileName(file: string): string {
  const counted = /^(\w+)-0*(\d+)$/.exec(file);
  if (counted === null) return file.replaceAll("-", " ");
  return counted[1] === "step" ? `step ${counted[2]}` : `${counted[1]} at step ${counted[2]}`;
}

/** Return the line of a row, without the digest of its id. Rows of two files may have the same line. */
export function lineOf(rowId: string): string {
  return rowId.split("-", 1)[0] ?? rowId;
}
