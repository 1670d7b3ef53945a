/** The curves of a job in their groups, and how each is read. */

import { printable } from "../../lib/format";
import type { JobMetrics } from "../../lib/types";

type Values = Record<string, number | null>;

/** A line: a metric, or a number that is computed from those of a step. */
interface One {
  label: string;
  of: string | ((step: Values) => number | null);
  /** Measured at few steps, such as validations. */
  sparse: boolean;
}

/** A line for each metric between `prefix` and `suffix`: `tool/search/calls_mean`. */
interface Family {
  prefix: string;
  suffix: string;
}

export interface Curve {
  title: string;
  /** Ends a sentence: "From 3 to 2: " and this. */
  reads: string;
  lines: (One | Family)[];
  /** Empty: none. */
  unit: string;
  /** The value before training is drawn too. */
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

const GROUPS: Group[] = [
  {
    title: "Is it learning?",
    curves: [
      curve("Reward", "", "all should rise; validation that falls while training rises means that rows are learned by heart.", [
        line("train", "train_mean_reward"),
        sparse("validation", "full_valid_mean_reward"),
        line("held-out grader", "held_out_grade_mean"),
      ], "reward"),
      curve("Loss", "", "it should fall; a validation loss that rises while it falls says to stop earlier.", [
        line("train", "loss"),
        sparse("validation", "full_valid_loss"),
      ], "loss"),
      curve("Grade", "", "the grade without penalties; where the reward rises and it does not, only penalties were avoided.", [
        line("train", "train_mean_grade"),
        sparse("validation", "full_valid_mean_grade"),
      ]),
      curve("Scores of the grader's parts", "", "a part that falls while the grade rises is the price of it.", [
        each("grader/", "/score_mean"),
      ]),
    ],
  },
  {
    title: "How it works",
    curves: [
      curve("Tool calls per rollout", "calls", "fewer at the same reward make a faster agent.", [each("tool/", "/calls_mean")]),
      curve("Tokens per rollout", "tokens", "sampled tokens cost time; the rest are prompts and results of tools.", [
        line("sampled", "completion_tokens_mean"),
        line("thoughts", "reasoning_tokens_mean"),
        line("all", "rollout_tokens_mean"),
      ]),
      curve("Turns with parallel calls", "%", "calls of one turn cost only the time of the slowest.", [
        line("parallel", percent("parallel_turn_share")),
      ]),
      curve("How rollouts ended", "rollouts", "only those with an answer were ended by the model itself.", [each("finish/")]),
    ],
  },
  {
    title: "How long it takes",
    curves: [
      curve("Time of a rollout", "s", "what a user waits; a 95th percentile far above the median is a tool or an engine that is slow at times.", [
        line("median", "rollout_wall_s_p50"),
        line("95th percentile", "rollout_wall_s_p95"),
        line("mean without queues", "rollout_busy_s_mean"),
      ]),
      curve("Latency of tools", "s", "a slow tool makes every step slow.", [each("tool/", "/latency_s_mean")]),
      curve("Phases of a step", "s", "mostly waiting means that more engines or faster tools would help.", [
        line("waiting", "time_wait_s"),
        line("learning", "time_learn_s"),
        line("weight sync", "time_sync_s"),
        sparse("validation", "time_eval_s"),
        sparse("checkpoint", "time_checkpoint_s"),
      ]),
      curve("Goodput", "tokens/s", "tokens that were learned from, per second of the whole step; it falls with all that is lost or waited for.", [
        line("trained", per("trained_tokens", "time_step_s")),
      ]),
    ],
  },
  {
    title: "What went wrong?",
    curves: [
      curve("Invalid and failed calls", "calls", "invalid calls are the model's mistakes, tool errors the tool's answers; the model sees both.", [
        each("call_errors/"),
      ]),
      curve("Discarded rollouts", "rollouts", "none is good; nothing is learned from them.", [each("discarded/")]),
      curve("Groups", "groups", "only those whose rollouts differ in reward teach anything.", [
        line("trained", "groups_trained"),
        each("groups_without_signal/"),
        line("lost", "groups_lost"),
      ]),
      curve("Rewards set by guards", "rollouts", "the more, the more often the model tries what must not pay.", [each("guard/")]),
    ],
  },
  {
    title: "Can the numbers be trusted?",
    curves: [
      curve("Staleness", "versions", "how many updates old the rollouts are that are learned from; it is bounded.", [
        line("mean", "staleness_mean"),
        line("largest", "staleness_max"),
      ]),
      curve("Engine against learner", "nats", "how far their log-probabilities differ with the same weights; small and steady is good.", [
        line("rollouts", "logprob_gap"),
        line("canary", "canary_gap"),
      ]),
      curve("Entropy", "nats", "it falls while the model decides; near zero it tries nothing new.", [line("entropy", "entropy")]),
      curve("Gradient norm", "", "single peaks are clipped; a steady rise is a sign of trouble.", [
        line("before clipping", "grad_norm"),
      ]),
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
  const drawn = lines.map(({ label, of, sparse }) => ({
    label,
    sparse,
    values: steps.map(({ metrics }) => (typeof of === "string" ? metrics[of] : of(metrics)) ?? null),
  }));
  const measured = drawn.filter((line) => line.values.some((value) => value !== null));
  if (measured.length <= MOST_LINES) return measured;
  return measured.sort((one, other) => largest(other) - largest(one)).slice(0, MOST_LINES);
}

function membersOf({ prefix, suffix }: Family, names: Set<string>): One[] {
  return [...names]
    .filter((name) => name.startsWith(prefix) && name.endsWith(suffix))
    .sort()
    .map((name) => line(printable(name.slice(prefix.length, name.length - suffix.length)).replaceAll("_", " "), name));
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
