/** API objects that these pages read. */

import type { JobStatus } from "../../lib/types";

export type Verdict = "train" | "fix_first" | "sft_warm_up";

export interface Readiness {
  id: string;
  created_at: number;
  finished_at: number | null;
  model: string;
  status: JobStatus;
  error: { code: string; message: string } | null;
  training_file: string;
  samples: number;
  target_latency_s: number | null;
  verdict: Verdict | null;
  reasons: { code: string; decides: boolean; message: string; fix: string }[];
  findings: Findings | null;
  result_files: string[];
}

interface Interval {
  mean: number | null;
  low: number | null;
  high: number | null;
}

export interface Findings {
  rollouts: number;
  samples: number;
  grade: Interval;
  reward: Interval;
  shares: { signal: number; all_wrong: number; all_right: number; equal: number };
  pass_at: { k: number; share: Interval }[];
  group_signal: { size: number; low: number; high: number }[];
  settings: { setting: string; value: number; why: string }[];
  estimate: { steps: number; useful_groups: number | null; sampling_s: number | null };
}

export const VERDICTS: Record<Verdict, { text: string; tone: "good" | "bad" | "warn" }> = {
  train: { text: "train", tone: "good" },
  fix_first: { text: "fix first", tone: "bad" },
  sft_warm_up: { text: "SFT warm-up", tone: "warn" },
};

export const ACTIVE: JobStatus[] = ["validating_files", "queued", "running", "paused"];
