/** The curves of a job in their groups, and how each is read. */

import { printable } from "../../lib/format";
import type { JobMetrics } from "../../lib/types";

type Values = Record<string, number | null>;

/** A line: a metric, or a number that is computed from those of a step. */
interface One {
  label: string;
  of: string | ((step: Values) => number | null);
  /** Measured at few steps, such as validations. */
  sparse?: boolean;
}

/** A line for each metric between `prefix` and `suffix`: `tool/search/calls_mean`. */
interface Family {
  prefix: string;
  suffix?: string;
}

export interface Curve {
  title: string;
  /** Ends a sentence: "From 3 to 2: " and this. */
  reads: string;
  lines: (One | Family)[];
  unit?: string;
  /** The value before training is drawn too. */
  baseline?: "reward" | "loss";
}

export interface Group {
  title: string;
  curves: Curve[];
}

function per(name: string, time: string): (step: Values) => number | null {
  return (step) => {
    const [count, took] = [step[name], step[time]];
    return count == null || !took ? null : count / took;
  };
}

function percent(name: string): (step: Values) => number | null {
  return (step) => (step[name] == null ? null : 100 * step[name]);
}

const GROUPS: Group[] = [
  {
    title: "Is it learning?",
    curves: [
      {
        title: "Reward",
        reads: "all should rise; validation that falls while training rises means that rows are learned by heart.",
        lines: [
          { label: "train", of: "train_mean_reward" },
          { label: "validation", of: "full_valid_mean_reward", sparse: true },
          { label: "held-out grader", of: "held_out_grade_mean" },
        ],
        baseline: "reward",
      },
      {
        title: "Loss",
        reads: "it should fall; a validation loss that rises while it falls says to stop earlier.",
        lines: [
          { label: "train", of: "loss" },
          { label: "validation", of: "full_valid_loss", sparse: true },
        ],
        baseline: "loss",
      },
      {
        title: "Grade",
        reads: "the grade without penalties; where the reward rises and it does not, only penalties were avoided.",
        lines: [
          { label: "train", of: "train_mean_grade" },
          { label: "validation", of: "full_valid_mean_grade", sparse: true },
        ],
      },
      {
        title: "Scores of the grader's parts",
        reads: "a part that falls while the grade rises is the price of it.",
        lines: [{ prefix: "grader/", suffix: "/score_mean" }],
      },
    ],
  },
  {
    title: "How it works",
    curves: [
      {
        title: "Tool calls per rollout",
        reads: "fewer at the same reward make a faster agent.",
        lines: [{ prefix: "tool/", suffix: "/calls_mean" }],
        unit: "calls",
      },
      {
        title: "Tokens per rollout",
        reads: "sampled tokens cost time; the rest are prompts and results of tools.",
        lines: [
          { label: "sampled", of: "completion_tokens_mean" },
          { label: "thoughts", of: "reasoning_tokens_mean" },
          { label: "all", of: "rollout_tokens_mean" },
        ],
        unit: "tokens",
      },
      {
        title: "Turns with parallel calls",
        reads: "calls of one turn cost only the time of the slowest.",
        lines: [{ label: "parallel", of: percent("parallel_turn_share") }],
        unit: "%",
      },
      {
        title: "How rollouts ended",
        reads: "only those with an answer were ended by the model itself.",
        lines: [{ prefix: "finish/" }],
        unit: "rollouts",
      },
    ],
  },
  {
    title: "How long it takes",
    curves: [
      {
        title: "Time of a rollout",
        reads: "what a user waits; a 95th percentile far above the median is a tool or an engine that is slow at times.",
        lines: [
          { label: "median", of: "rollout_wall_s_p50" },
          { label: "95th percentile", of: "rollout_wall_s_p95" },
          { label: "mean without queues", of: "rollout_busy_s_mean" },
        ],
        unit: "s",
      },
      {
        title: "Latency of tools",
        reads: "a slow tool makes every step slow.",
        lines: [{ prefix: "tool/", suffix: "/latency_s_mean" }],
        unit: "s",
      },
      {
        title: "Phases of a step",
        reads: "mostly waiting means that more engines or faster tools would help.",
        lines: [
          { label: "waiting", of: "time_wait_s" },
          { label: "learning", of: "time_learn_s" },
          { label: "weight sync", of: "time_sync_s" },
          { label: "validation", of: "time_eval_s", sparse: true },
          { label: "checkpoint", of: "time_checkpoint_s", sparse: true },
        ],
        unit: "s",
      },
      {
        title: "Goodput",
        reads: "tokens that were learned from, per second of the whole step; it falls with all that is lost or waited for.",
        lines: [{ label: "trained", of: per("trained_tokens", "time_step_s") }],
        unit: "tokens/s",
      },
    ],
  },
  {
    title: "What went wrong?",
    curves: [
      {
        title: "Invalid and failed calls",
        reads: "invalid calls are the model's mistakes, tool errors the tool's answers; the model sees both.",
        lines: [{ prefix: "call_errors/" }],
        unit: "calls",
      },
      {
        title: "Discarded rollouts",
        reads: "none is good; nothing is learned from them.",
        lines: [{ prefix: "discarded/" }],
        unit: "rollouts",
      },
      {
        title: "Groups",
        reads: "only those whose rollouts differ in reward teach anything.",
        lines: [
          { label: "trained", of: "groups_trained" },
          { prefix: "groups_without_signal/" },
          { label: "lost", of: "groups_lost" },
        ],
        unit: "groups",
      },
      {
        title: "Rewards set by guards",
        reads: "the more, the more often the model tries what must not pay.",
        lines: [{ prefix: "guard/" }],
        unit: "rollouts",
      },
    ],
  },
  {
    title: "Can the numbers be trusted?",
    curves: [
      {
        title: "Staleness",
        reads: "how many updates old the rollouts are that are learned from; it is bounded.",
        lines: [
          { label: "mean", of: "staleness_mean" },
          { label: "largest", of: "staleness_max" },
        ],
        unit: "versions",
      },
      {
        title: "Engine against learner",
        reads: "how far their log-probabilities differ with the same weights; small and steady is good.",
        lines: [
          { label: "rollouts", of: "logprob_gap" },
          { label: "canary", of: "canary_gap" },
        ],
        unit: "nats",
      },
      {
        title: "Entropy",
        reads: "it falls while the model decides; near zero it tries nothing new.",
        lines: [{ label: "entropy", of: "entropy" }],
        unit: "nats",
      },
      {
        title: "Gradient norm",
        reads: "single peaks are clipped; a steady rise is a sign of trouble.",
        lines: [{ label: "before clipping", of: "grad_norm" }],
      },
    ],
  },
];

/** The curves of a job whose numbers are these. A reinforcement job has a loss too, which says little. */
export function groupsOf(metric: "reward" | "loss"): Group[] {
  const fits = (curve: Curve): boolean => curve.baseline === undefined || curve.baseline === metric;
  return GROUPS.map(({ title, curves }) => ({ title, curves: curves.filter(fits) }));
}

export interface Drawn {
  label: string;
  values: (number | null)[];
  sparse: boolean;
}

const MOST_LINES = 6;

/** The names of all metrics that some step has. */
export function namesIn(steps: JobMetrics[]): Set<string> {
  const found = new Set<string>();
  for (const one of steps) for (const name of Object.keys(one.metrics)) found.add(name);
  return found;
}

/** The lines of a curve that have values; of a large family only those with the largest. */
export function linesOf(curve: Curve, steps: JobMetrics[], names: Set<string>): Drawn[] {
  const lines = curve.lines.flatMap((line) => ("of" in line ? [line] : membersOf(line, names)));
  const drawn = lines.map(({ label, of, sparse = false }) => ({
    label,
    sparse,
    values: steps.map(({ metrics }) => (typeof of === "string" ? metrics[of] : of(metrics)) ?? null),
  }));
  const measured = drawn.filter((line) => line.values.some((value) => value !== null));
  if (measured.length <= MOST_LINES) return measured;
  return measured.sort((one, other) => largest(other) - largest(one)).slice(0, MOST_LINES);
}

function membersOf({ prefix, suffix = "" }: Family, names: Set<string>): One[] {
  return [...names]
    .filter((name) => name.startsWith(prefix) && name.endsWith(suffix))
    .sort()
    .map((name) => ({ label: printable(name.slice(prefix.length, name.length - suffix.length)).replaceAll("_", " "), of: name }));
}

function largest(line: Drawn): number {
  return line.values.reduce<number>((most, value) => Math.max(most, value ?? 0), 0);
}

/** Each value as the mean of the last `width` measured ones; validations stay as they are. */
export function smoothed(line: Drawn, width: number): Drawn {
  if (width <= 1 || line.sparse) return line;
  const window: number[] = [];
  let sum = 0;
  const values = line.values.map((value) => {
    if (value === null) return null;
    window.push(value);
    sum += value - (window.length > width ? (window.shift() ?? 0) : 0);
    return sum / window.length;
  });
  return { ...line, values };
}
