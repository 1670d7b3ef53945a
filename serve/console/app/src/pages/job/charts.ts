/** Curves of a job in groups, each with an explanation. */

import { printable } from "../../lib/format";
import type { JobMetrics } from "../../lib/types";
import texts from "./chart-texts.json";

type Values = Record<string, number | null>;

/** Line of a metric, or of a value computed from a step's metrics. */
interface One {
  label: string;
  of: string | ((step: Values) => number | null);
  /** Measured at few steps, such as validations. */
  sparse: boolean;
}

/** Lines of all metrics between `prefix` and `suffix`: `tool/search/calls_mean`. */
interface Family {
  prefix: string;
  suffix: string;
}

export interface Curve {
  title: string;
  /** Explanation, the end of a sentence without its period: "From 3 to 2: ...". */
  reads: string;
  lines: (One | Family)[];
  /** Unit of the values; may be empty. */
  unit: string;
  /** Metric whose value before training is also drawn. */
  baseline: "reward" | "loss" | undefined;
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

function line(label: string, of: One["of"]): One {
  return { label, of, sparse: false };
}

function sparse(label: string, of: string): One {
  return { label, of, sparse: true };
}

function each(prefix: string, suffix = ""): Family {
  return { prefix, suffix };
}

function curve(title: string, unit: string, reads: string, lines: Curve["lines"], baseline?: Curve["baseline"]): Curve {
  return { title, unit, reads, lines, baseline };
}

/** Curve with the title and explanation of a chart of the report: `CHARTS` in agent_rft/metrics/metric_charts.py. */
function shared(key: keyof typeof texts, unit: string, lines: Curve["lines"]): Curve {
  const { title, explanation } = texts[key];
  return curve(title, unit, explanation, lines);
}

const GROUPS: Group[] = [
  {
    title: "Learning",
    curves: [
      curve("Reward", "", "all curves should rise; if only the train curve rises, the model memorizes rows", [
        line("train", "train_mean_reward"),
        sparse("validation", "full_valid_mean_reward"),
        line("held-out grade", "held_out_grade_mean"),
      ], "reward"),
      curve("Loss", "", "the train loss should fall; if the validation loss rises, stop training earlier", [
        line("train", "loss"),
        sparse("validation", "full_valid_loss"),
      ], "loss"),
      curve("Grade", "", "the grade excludes penalties; if only the reward rises, the model only avoids penalties", [
        line("train", "train_mean_grade"),
        sparse("validation", "full_valid_mean_grade"),
      ]),
      shared("grader_parts", "", [
        each("grader/", "/score_mean"),
      ]),
    ],
  },
  {
    title: "Agent behavior",
    curves: [
      shared("tool_calls", "calls", [each("tool/", "/calls_mean")]),
      shared("tokens", "tokens", [
        line("sampled", "completion_tokens_mean"),
        line("reasoning", "reasoning_tokens_mean"),
        line("all", "rollout_tokens_mean"),
      ]),
      shared("parallel", "%", [
        line("parallel", percent("parallel_turn_share")),
      ]),
      shared("finish", "rollouts", [each("finish/")]),
    ],
  },
  {
    title: "Speed",
    curves: [
      shared("rollout_time", "s", [
        line("median", "rollout_wall_s_p50"),
        line("95th percentile", "rollout_wall_s_p95"),
        line("mean busy time", "rollout_busy_s_mean"),
      ]),
      shared("tool_latency", "s", [each("tool/", "/latency_s_mean")]),
      shared("step_time", "s", [
        line("waiting", "time_wait_s"),
        line("learning", "time_learn_s"),
        line("weight sync", "time_sync_s"),
        sparse("validation", "time_eval_s"),
        sparse("checkpoint", "time_checkpoint_s"),
      ]),
      curve("Trained tokens per second", "tokens/s", "higher is better; waiting and discarded rollouts lower the number", [
        line("trained", per("trained_tokens", "time_step_s")),
      ]),
    ],
  },
  {
    title: "Errors",
    curves: [
      shared("call_errors", "calls", [
        each("call_errors/"),
      ]),
      shared("discarded", "rollouts", [each("discarded/")]),
      shared("groups", "groups", [
        line("trained", "groups_trained"),
        each("zero_variance_groups/"),
        line("lost", "groups_lost"),
      ]),
      shared("guards", "rollouts", [each("guard/")]),
    ],
  },
  {
    title: "Training health",
    curves: [
      shared("staleness", "versions", [
        line("mean", "staleness_mean"),
        line("largest", "staleness_max"),
      ]),
      shared("gap", "nats", [
        line("trained tokens", "logprob_gap"),
        line("canary", "canary_gap"),
      ]),
      shared("entropy", "nats", [line("entropy", "entropy")]),
      shared("grad_norm", "", [
        line("before clipping", "grad_norm"),
      ]),
    ],
  },
];

/** Return the curves for a job's main metric. The loss of a reinforcement job is left out, because it means little. */
export function groupsOf(metric: "reward" | "loss"): Group[] {
  const fits = (curve: Curve): boolean => curve.baseline === undefined || curve.baseline === metric;
  return GROUPS.map(({ title, curves }) => ({ title, curves: curves.filter(fits) }));
}

export interface Drawn {
  label: string;
  values: (number | null)[];
  sparse: boolean;
}

const MAX_LINES = 6;

/** Return the names of all metrics in the steps. */
export function namesIn(steps: JobMetrics[]): Set<string> {
  const found = new Set<string>();
  for (const one of steps) for (const name of Object.keys(one.metrics)) found.add(name);
  return found;
}

/** Return the lines of a curve that have values; from a large family, the lines with the largest values. */
export function linesOf(curve: Curve, steps: JobMetrics[], names: Set<string>): Drawn[] {
  const lines = curve.lines.flatMap((line) => ("of" in line ? [line] : membersOf(line, names)));
  const drawn = lines.map(({ label, of, sparse }) => ({
    label,
    sparse,
    values: steps.map(({ metrics }) => (typeof of === "string" ? metrics[of] : of(metrics)) ?? null),
  }));
  const measured = drawn.filter((line) => line.values.some((value) => value !== null));
  if (measured.length <= MAX_LINES) return measured;
  return measured.sort((one, other) => largest(other) - largest(one)).slice(0, MAX_LINES);
}

function membersOf({ prefix, suffix }: Family, names: Set<string>): One[] {
  return [...names]
    .filter((name) => name.startsWith(prefix) && name.endsWith(suffix))
    .sort()
    .map((name) => line(printable(name.slice(prefix.length, name.length - suffix.length)).replaceAll("_", " "), name));
}

function largest(line: Drawn): number {
  return line.values.reduce<number>((max, value) => Math.max(max, value ?? 0), 0);
}

/** Replace each value by the mean of the last `width` measured values; validations stay unchanged. */
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
