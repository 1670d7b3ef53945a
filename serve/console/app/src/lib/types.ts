/** API objects that the console reads; docs/reference/api.md describes them. */

export type Scope = "read" | "write" | "admin";

export interface Session {
  object: "console.session";
  key: { id: string; name: string; scopes: Scope[] };
  /** Whether nothing can be created or changed (`agent-rft train --open`). */
  read_only: boolean;
}

export interface Page<T> {
  object: "list";
  data: T[];
  has_more: boolean;
  first_id: string | null;
  last_id: string | null;
}

export type JobStatus =
  | "validating_files"
  | "queued"
  | "running"
  | "paused"
  | "succeeded"
  | "failed"
  | "cancelled";

export interface Job {
  id: string;
  object: "fine_tuning.job";
  created_at: number;
  finished_at: number | null;
  estimated_finish: number | null;
  model: string;
  fine_tuned_model: string | null;
  status: JobStatus;
  error: { code: string; message: string; param: string | null } | null;
  hyperparameters: Record<string, unknown>;
  method: Record<string, unknown>;
  model_options: Record<string, unknown> | null;
  training_file: string;
  validation_file: string | null;
  test_file: string | null;
  result_files: string[];
  trained_tokens: number | null;
  seed: number;
  suffix: string | null;
  metadata: Record<string, string> | null;
  /** Only if requested with `include=progress`. */
  progress: JobProgress | null;
}

/** Progress of a job. Values are rewards, or losses if `metric` is `loss`. */
export interface JobProgress {
  metric: "reward" | "loss";
  step: number;
  total_steps: number | null;
  train: number | null;
  validation: number | null;
  baseline: number | null;
  baseline_of: "train" | "validation" | null;
}

/** Resolved settings of a job; null before it has started. */
export interface JobSettings {
  object: "fine_tuning.job.settings";
  fine_tuning_job_id: string;
  job: Record<string, unknown> | null;
  plan: Record<string, unknown> | null;
}

export interface JobEvent {
  id: string;
  object: "fine_tuning.job.event";
  created_at: number;
  level: "info" | "warn" | "error";
  type: "message" | "metrics";
  message: string;
  data: Record<string, unknown> | null;
}

export interface JobMetrics {
  id: string;
  object: "fine_tuning.job.metrics";
  fine_tuning_job_id: string;
  step_number: number;
  metrics: Record<string, number | null>;
}

export interface Checkpoint {
  id: string;
  object: "fine_tuning.job.checkpoint";
  created_at: number;
  fine_tuned_model_checkpoint: string;
  fine_tuning_job_id: string;
  step_number: number;
  metrics: Record<string, number | null>;
}

export interface Model {
  id: string;
  object: "model";
  created: number;
  owned_by: string;
}

/** One event of `GET /v1/fine_tuning/jobs/{id}/stream`. */
export type StreamEvent =
  | { type: "job"; job: Job }
  | { type: "event"; event: JobEvent }
  | { type: "metrics"; metrics: JobMetrics };

/** Message as in chat completions, with the reasoning before it. */
export interface Message {
  role: "system" | "developer" | "user" | "assistant" | "tool";
  content: string | null;
  reasoning_content?: string | null;
  tool_calls?: ToolCall[] | null;
  tool_call_id?: string | null;
}

export interface ToolCall {
  id: string;
  type: "function";
  function: { name: string; arguments: string };
}
