"""Step metrics: one line of metrics.jsonl per step, written by the driver after the step."""

from __future__ import annotations

from functools import partial

from agent_rft.metrics.metric import BYTES, LONG_SECONDS, SECONDS, Metric

_counter = partial(Metric, kind="counter")
_histogram = partial(Metric, kind="histogram")
_file_metric = partial(Metric, kind="file")

_PROGRESS: dict[str, Metric] = {
    "step": Metric("step", "steps", "number of the step, from 1"),
    "total_steps": Metric("planned steps", "steps", "planned number of training steps"),
    "version": Metric("policy version", "", "policy version after the step"),
    "elapsed_s": Metric("elapsed time", "s", "time since the training loop started"),
}

_REWARDS: dict[str, Metric] = {
    "train_mean_reward": Metric(
        "train reward",
        "",
        "mean reward of the step's graded rollouts",
        short_label="reward",
        in_live_view=True,
        message="train mean reward",
        in_result_columns=True,
        series="train",
    ),
    "full_valid_mean_reward": Metric(
        "validation reward",
        "",
        "mean reward over the validation file",
        short_label="valid reward",
        in_live_view=True,
        message="full validation mean reward",
        in_result_columns=True,
        series="validation",
    ),
    "train_mean_grade": Metric(
        "train grade",
        "",
        "mean grade of the step's graded rollouts, before penalties are subtracted",
        short_label="grade",
        in_live_view=True,
        message="train mean grade",
        series="train",
    ),
    "full_valid_mean_grade": Metric(
        "validation grade",
        "",
        "mean grade over the validation file",
        short_label="valid grade",
        in_live_view=True,
        series="validation",
    ),
    "full_valid_pass_rate": Metric(
        "validation pass rate", "share", "share of validation rollouts whose grade reaches the grader's pass_threshold"
    ),
    "full_valid_ci95": Metric(
        "95 % interval of the validation grade",
        "",
        "half the width of the 95 % confidence interval of full_valid_mean_grade, computed over rows",
    ),
    "full_valid_rollouts": Metric("validation rollouts", "rollouts", "graded validation rollouts"),
    "full_valid_missing_rollouts": Metric(
        "missing validation rollouts", "rollouts", "validation rollouts without a grade, even after a retry"
    ),
    "full_valid_grade_if_wrong": Metric(
        "validation grade if missing rollouts count as wrong",
        "",
        "mean grade over the validation file if all missing rollouts had the lowest grade",
    ),
    "full_valid_grade_if_right": Metric(
        "validation grade if missing rollouts count as right",
        "",
        "mean grade over the validation file if all missing rollouts had the highest grade",
    ),
    "full_valid_tool_calls_mean": Metric(
        "tool calls per validation rollout",
        "calls",
        "mean tool calls per validation rollout",
        series="per validation rollout",
    ),
    "valid_reasoning_tokens_mean": Metric(
        "reasoning tokens per validation rollout",
        "tokens",
        "mean number of tokens sampled until the reasoning ended, per validation rollout",
    ),
    "full_valid_loss": Metric(
        "validation loss",
        "nats",
        "cross-entropy on the validation file (supervised jobs only)",
        chart="loss",
        series="validation",
        in_live_view=True,
        message="full validation loss",
        value_format="{:.4f}",
    ),
}

_BEHAVIOR: dict[str, Metric] = {
    "tool_calls_mean": Metric(
        "tool calls per rollout",
        "calls",
        "mean tool calls per rollout",
        short_label="calls",
        in_live_view=True,
        message="mean tool calls",
        series="per rollout",
    ),
    "turns_mean": Metric(
        "turns per rollout",
        "turns",
        "mean model turns per rollout",
        chart="turns",
        series="turns",
        short_label="turns",
        in_live_view=True,
    ),
    "parallel_turn_share": Metric(
        "turns with parallel calls",
        "share",
        "share of turns with several tool calls, among all turns with tool calls",
        chart="parallel",
        series="parallel",
        short_label="parallel",
        in_live_view=True,
    ),
    "completion_tokens_mean": Metric(
        "sampled tokens per rollout",
        "tokens",
        "mean number of sampled tokens per rollout, including reasoning",
        chart="tokens",
        series="sampled",
        short_label="sampled",
        in_live_view=True,
        message="mean completion tokens",
        in_result_columns=True,
    ),
    "reasoning_tokens_mean": Metric(
        "reasoning tokens per rollout",
        "tokens",
        "mean number of tokens sampled until the reasoning ended, per rollout",
        chart="tokens",
        series="reasoning",
        in_result_columns=True,
    ),
    "rollout_tokens_mean": Metric(
        "all tokens per rollout",
        "tokens",
        "mean number of tokens in all segments of a rollout, including prompts and tool results",
        chart="tokens",
        series="all",
        short_label="tokens",
        in_live_view=True,
    ),
    "segments_mean": Metric(
        "segments per rollout",
        "segments",
        "mean number of segments per rollout: 1 if the chat template only appends, more if it rewrites earlier turns",
    ),
    "rollout_busy_s_mean": Metric(
        "busy time per rollout",
        "s",
        "mean model and tool time per rollout, excluding queueing, retries and pauses",
        chart="rollout_time",
        series="busy",
        short_label="busy",
        in_live_view=True,
    ),
    "rollout_wall_s_mean": Metric(
        "wall-clock time per rollout", "s", "mean wall-clock time per rollout", chart="rollout_time", series="wall"
    ),
    "rollout_wall_s_p50": Metric(
        "median wall-clock time per rollout", "s", "median of the wall-clock times of the step's rollouts"
    ),
    "rollout_wall_s_p95": Metric(
        "95th percentile of the wall-clock time per rollout",
        "s",
        "95th percentile of the wall-clock times of the step's rollouts",
    ),
    "grade_latency_s_mean": Metric(
        "grading time per rollout", "s", "mean latency of the grader per rollout", chart="rollout_time", series="grader"
    ),
    "grader/<grader>/score_mean": Metric(
        "score of a grader part",
        "",
        "mean score of one part of a multi grader; `ungated` is the score without guards",
        chart="grader_parts",
    ),
    "guard/<guard>": _counter(
        "rewards set by a guard", "rollouts", "rollouts whose reward was set by this guard", chart="guards"
    ),
    "held_out_grade_mean": Metric(
        "held-out grade",
        "",
        "mean grade of the held-out grader, which is never used for training",
        chart="held_out",
        series="held out",
    ),
    "held_out_failures": _counter(
        "held-out grader failures", "rollouts", "graded rollouts for which the held-out grader failed"
    ),
    "judge_tokens/<model>": _counter("judge tokens", "tokens", "tokens spent on one judge model"),
    "finish/<reason>": _counter(
        "rollouts by finish reason",
        "rollouts",
        "rollouts by finish reason: answer, max_steps, max_tokens, context or timeout",
        chart="finish",
    ),
    "tool/<tool>/calls_mean": _file_metric(
        "calls to a tool per rollout", "calls", "mean number of calls to one tool per rollout", chart="tool_calls"
    ),
    "tool/<tool>/latency_s_mean": Metric(
        "latency of a tool", "s", "mean latency of one tool's answers", chart="tool_latency"
    ),
    "tool/<tool>/output_tokens_mean": _file_metric(
        "tokens of a tool's output",
        "tokens",
        "mean tokens per output of one tool, estimated from the outputs' lengths; calls at the end of a segment are "
        "omitted",
    ),
    "tool/<tool>/output_chars_mean": Metric(
        "length of a tool's output", "characters", "mean length of one tool's outputs"
    ),
    "tool/<tool>/errors": _counter(
        "tool errors", "calls", "calls that one tool answered with an error; the model sees these errors"
    ),
    "call_errors/<kind>": _counter(
        "invalid calls",
        "calls",
        "calls that returned an error to the model: malformed_call, unknown_tool, invalid_arguments, over_budget, "
        "tool_error",
        chart="call_errors",
    ),
}

_DISCARDS: dict[str, Metric] = {
    "rollouts_graded": _counter("graded rollouts", "rollouts", "graded rollouts of the step's groups"),
    "rollouts_untrained": _counter(
        "rollouts left out of training",
        "rollouts",
        "graded rollouts that are not trained on, because a grader answered `train: false`",
    ),
    "mean_unresponsive_rewards": Metric(
        "discarded rollouts",
        "share",
        "share of the rollouts in the step's groups that were discarded",
        short_label="discarded",
        in_live_view=True,
        message="unresponsive rewards",
        in_result_columns=True,
    ),
    "discarded/<reason>": _counter(
        "discarded rollouts by reason",
        "rollouts",
        "discarded rollouts by reason: tool_failed, grader_failed, rollout_timeout, rollout_waited, engine_failed, "
        "template_failed",
        chart="discarded",
    ),
    "groups_trained": _counter(
        "groups trained", "groups", "groups that were trained on", chart="groups", series="trained"
    ),
    "zero_variance_groups/<kind>": _counter(
        "zero-variance groups",
        "groups",
        "groups without signal, because all rewards of a group are equal; by kind: all_right, all_wrong, equal",
        chart="groups",
    ),
    "groups_lost": _counter(
        "groups lost", "groups", "groups with fewer than two graded rollouts", chart="groups", series="lost"
    ),
    "rollout_attempts/<state>": _file_metric(
        "rollout attempts",
        "rollouts",
        "rollout attempts since the start, by state: started = graded + discarded + cancelled + in_flight",
    ),
    "slow_rows_graded_ratio": Metric(
        "share of graded rollouts in slow groups, divided by the share in all groups",
        "",
        "share of graded rollouts in the slowest quarter of groups, divided by the share of graded rollouts in all "
        "groups. A value below 1 means that slow groups lose more rollouts than other groups",
    ),
}

_STALENESS_AND_SYNC: dict[str, Metric] = {
    "staleness_mean": Metric(
        "staleness in versions",
        "versions",
        "number of policy versions by which the oldest token of a trained group is behind the learner (mean over "
        "groups)",
        chart="staleness",
        series="mean",
        short_label="stale",
        in_live_view=True,
    ),
    "staleness_max": Metric(
        "largest staleness",
        "versions",
        "number of policy versions by which the oldest token of a trained group is behind the learner (maximum over "
        "groups)",
        chart="staleness",
        series="largest",
    ),
    "sync_pause_s": _histogram(
        "pause per update",
        "s",
        "longest time for which an engine paused generation for the weight update",
        buckets=SECONDS,
        chart="sync",
        series="pause",
        short_label="pause",
        in_live_view=True,
    ),
    "sync_total_s": _histogram(
        "weight sync time",
        "s",
        "time to send the learner's weights to all engines",
        buckets=SECONDS,
        chart="sync",
        series="total",
    ),
    "sync_bytes": _histogram(
        "bytes per weight sync", "bytes", "bytes of weights sent to each engine per update", buckets=BYTES
    ),
    "canary_gap": Metric(
        "canary gap",
        "nats",
        "mean absolute difference between the log-probabilities of engines and learner with the same weights, on the "
        "tokens of one recorded rollout (the canary)",
        chart="gap",
        series="canary",
    ),
}

_LEARNER: dict[str, Metric] = {
    "loss": Metric(
        "loss",
        "",
        "loss of the step: the reinforcement objective, or the cross-entropy of a supervised job",
        chart="loss",
        series="train",
        in_live_view=True,
        message="training loss",
        value_format="{:.4f}",
    ),
    "grad_norm": Metric(
        "gradient norm", "", "norm of the gradient before clipping", chart="grad_norm", series="before clipping"
    ),
    "learning_rate": Metric(
        "learning rate", "", "learning rate of the step's update, as the schedule sets it", value_format="{:.2e}"
    ),
    "entropy": Metric(
        "entropy",
        "nats",
        "mean entropy of the learner's distribution at each trained token, in nats",
        chart="entropy",
        series="entropy",
    ),
    "importance_ratio_mean": Metric(
        "importance ratio",
        "",
        "mean of the learner's probability divided by the engine's probability, over trained tokens",
        series="all tokens",
    ),
    "importance_capped_share": Metric(
        "tokens with a capped weight",
        "share",
        "share of trained tokens whose importance weight was capped",
        chart="limited",
        series="weight capped",
    ),
    "clipped_share": Metric(
        "clipped tokens",
        "share",
        "share of trained tokens whose probability ratio was clipped",
        chart="limited",
        series="ratio clipped",
    ),
    "diverged_share": Metric(
        "diverged tokens",
        "share",
        "share of trained tokens whose loss was set to 0, because the learner's probability is too far from the "
        "engine's",
        chart="limited",
        series="diverged",
    ),
    "kl_reference": Metric(
        "KL to the reference model",
        "nats",
        "KL divergence of the policy from the reference model, in nats; only if kl_coef is above 0",
    ),
    "logprob_gap": Metric(
        "log-probability gap",
        "nats",
        "mean absolute difference between the log-probabilities of engines and learner, over turns that were sampled "
        "only with the learner's version of the weights",
        chart="gap",
        series="trained tokens",
    ),
    "importance_ratio_same_version": Metric(
        "importance ratio at equal versions",
        "",
        "mean ratio of the learner's probability to the engine's probability, over turns that were sampled only with "
        "the learner's version of the weights",
        series="same version",
    ),
    "logprob_gap_tokens": Metric(
        "tokens used to compute the log-probability gap",
        "tokens",
        "number of tokens over which logprob_gap and importance_ratio_same_version are averaged; the two can warn or "
        "end the run from 200 tokens on",
    ),
    "tokens_without_loss": _counter(
        "tokens without loss",
        "tokens",
        "sampled tokens that are excluded from the loss. The learner could not compute which tokens the response "
        "format allowed, because the learner's grammar library or tokenizer has another version than the engine's",
    ),
    "trained_tokens": _counter("trained tokens", "tokens", "tokens over which the loss is computed", series="trained"),
    "computed_tokens": _counter(
        "computed tokens",
        "tokens",
        "tokens that went through the model, including padding; on CPU, a prefix that rollouts share counts once",
        series="computed",
    ),
    "padding_efficiency": Metric("padding efficiency", "share", "share of packed tokens that are not padding"),
    "num_micro_batches": Metric("micro-batches per rank", "", "micro-batches of the step on each rank"),
    "update_applied": Metric(
        "update applied", "", "1 if the update was applied, 0 if it was skipped because the gradient was not finite"
    ),
}

_TIMES: dict[str, Metric] = {
    "time_wait_s": _histogram(
        "waiting for rollouts",
        "s",
        "time that the learner waited for rollouts",
        buckets=LONG_SECONDS,
        chart="step_time",
        series="waiting",
    ),
    "engine_busy_share": Metric(
        "engine utilization",
        "share",
        "share of the time since the previous step during which an engine had requests to run (mean over engines)",
    ),
    "time_write_ahead_s": _histogram(
        "write-ahead",
        "s",
        "time to write a batch to the journal, before the model is trained on this batch",
        buckets=SECONDS,
        series="write-ahead",
    ),
    "time_learn_s": _histogram(
        "learning",
        "s",
        "time that the learner spent on the step's updates",
        buckets=LONG_SECONDS,
        chart="step_time",
        series="learning",
    ),
    "time_sync_s": _histogram(
        "weight sync",
        "s",
        "time to publish the new weights to all engines",
        buckets=LONG_SECONDS,
        chart="step_time",
        series="weight sync",
    ),
    "time_eval_s": _histogram(
        "validation",
        "s",
        "time to evaluate the validation file; recorded only in steps with a validation",
        buckets=LONG_SECONDS,
        chart="step_time",
        series="validation",
    ),
    "time_checkpoint_s": _histogram(
        "checkpoint",
        "s",
        "time for which saving a checkpoint blocked training: the snapshot, and the wait for the previous write; only "
        "in steps that save a checkpoint",
        buckets=LONG_SECONDS,
        series="checkpoint",
    ),
    "time_step_s": _histogram(
        "step time",
        "s",
        "time of the complete step, including validation and checkpoint",
        buckets=LONG_SECONDS,
        series="complete step",
    ),
}

STEP_GROUPS: dict[str, dict[str, Metric]] = {
    "Progress": _PROGRESS,
    "Rewards and grades": _REWARDS,
    "Agent behavior": _BEHAVIOR,
    "Discarded rollouts and groups": _DISCARDS,
    "Staleness and weight sync": _STALENESS_AND_SYNC,
    "Learner": _LEARNER,
    "Step time": _TIMES,
}
"""Step metrics, grouped by heading in the reference."""
STEP_METRICS = {name: metric for group in STEP_GROUPS.values() for name, metric in group.items()}
