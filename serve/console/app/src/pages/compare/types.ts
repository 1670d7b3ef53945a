/** API objects that this page reads. */

export interface Evaluation {
  id: string;
  fine_tuning_job_id: string;
  file: "test_file" | "validation_file" | "training_file";
  num_rows: number | null;
  samples: number | null;
  grade: number | null;
  reward: number | null;
}

export interface Side {
  label: string;
  run: string;
  name: string;
  num_missing: number | null;
  grade_if_wrong: number | null;
  grade_if_right: number | null;
  num_rollouts: number;
  means: Record<string, number | null>;
  repeated: number;
  tools: Record<string, { calls: number; failed: number; repeated: number; first: number; last: number }>;
  rows_of_this_side_only: string[];
  rows_not_graded: string[];
}

export interface Measure {
  before: number | null;
  after: number | null;
  change: number | null;
  low: number | null;
  high: number | null;
  verdict: "better" | "worse" | "unclear" | "same";
}

export interface Change {
  measures: Record<string, Measure>;
  quadrants: { reward: string; tool_calls: string; rows: number }[];
  gained: string[];
  lost: string[];
}

export interface RowSide {
  grade: number | null;
  held_out: number | null;
  reward: number | null;
  busy_s: number | null;
  completion_tokens: number | null;
  tool_calls: number | null;
  turns: number | null;
  trace_ids: string[];
}

export interface Row {
  row_id: string;
  question: string;
  sides: RowSide[];
}

export interface Comparison {
  sides: Side[];
  changes: Change[];
  rows: Row[];
}

export const LABELS: Record<string, string> = {
  grade: "grade",
  held_out: "held-out grade",
  reward: "reward",
  busy_s: "model and tool time, s",
  completion_tokens: "sampled tokens",
  tool_calls: "tool calls",
  turns: "turns",
};

export const TONES = { better: "good", worse: "bad", unclear: "plain", same: "plain" } as const;
