"""What the driver knows of a step once it is done: a line of metrics.jsonl."""

from __future__ import annotations

from functools import partial

from agent_rft.metrics.metric import BYTES, LONG_SECONDS, SECONDS, Metric

_count = partial(Metric, kind="counter")
_spread = partial(Metric, kind="histogram")
_file = partial(Metric, kind="file")

_PROGRESS: dict[str, Metric] = {
    "step": Metric("step", "steps", "updates taken, counted from 1"),
    "total_steps": Metric("planned steps", "steps", "updates planned"),
    "version": Metric("policy version", "", "policy version after the step"),
    "elapsed_s": Metric("elapsed time", "s", "time since the training loop started"),
}

_REWARDS: dict[str, Metric] = {
    "train_mean_reward": Metric(
        "train reward",
        "",
        "mean reward of the step's graded rollouts",
        short="reward",
        in_live_view=True,
        message="train mean reward",
        csv=True,
        series="train",
    ),
    "full_valid_mean_reward": Metric(
        "validation reward",
        "",
        "mean reward over the whole validation file",
        short="valid reward",
        in_live_view=True,
        message="full validation mean reward",
        csv=True,
        series="validation",
    ),
    "train_mean_grade": Metric(
        "train grade",
        "",
        "mean grade of the step's graded rollouts, without penalties",
        short="grade",
        in_live_view=True,
        message="train mean grade",
        series="train",
    ),
    "full_valid_mean_grade": Metric(
        "validation grade",
        "",
        "mean grade over the whole validation file",
        short="valid grade",
        in_live_view=True,
        series="validation",
    ),
    "full_valid_pass_rate": Metric(
        "validation pass rate", "share", "share of validation rollouts whose grade reaches the grader's pass_threshold"
    ),
    "full_valid_ci95": Metric(
        "95 % interval of the validation grade",
        "",
        "half width of the 95 % confidence interval of full_valid_mean_grade, over rows",
    ),
    "full_valid_n": Metric("validation rollouts", "rollouts", "graded validation rollouts"),
    "full_valid_tool_calls_mean": Metric(
        "tool calls per validation rollout",
        "calls",
        "mean tool calls per validation rollout",
        series="per validation rollout",
    ),
    "valid_reasoning_tokens_mean": Metric(
        "reasoning tokens per validation rollout",
        "tokens",
        "mean sampled tokens up to the end of thought, per validation rollout",
    ),
    "full_valid_loss": Metric(
        "validation loss",
        "nats",
        "cross-entropy on the validation file (supervised jobs only)",
        chart="loss",
        series="validation",
        in_live_view=True,
        message="full validation loss",
        form="{:.4f}",
    ),
}

_BEHAVIOR: dict[str, Metric] = {
    "tool_calls_mean": Metric(
        "tool calls per rollout",
        "calls",
        "mean tool calls per rollout",
        short="calls",
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
        short="turns",
        in_live_view=True,
    ),
    "parallel_turn_share": Metric(
        "turns with parallel calls",
        "share",
        "share of turns with calls that have more than one",
        chart="parallel",
        series="parallel",
        short="parallel",
        in_live_view=True,
    ),
    "completion_tokens_mean": Metric(
        "sampled tokens per rollout",
        "tokens",
        "mean sampled tokens per rollout, reasoning included",
        chart="tokens",
        series="sampled",
        short="sampled",
        in_live_view=True,
        message="mean completion tokens",
        csv=True,
    ),
    "reasoning_tokens_mean": Metric(
        "reasoning tokens per rollout",
        "tokens",
        "mean sampled tokens up to the end of thought, per rollout",
        chart="tokens",
        series="reasoning",
        csv=True,
    ),
    "rollout_tokens_mean": Metric(
        "all tokens per rollout",
        "tokens",
        "mean tokens per rollout, prompt and tool results included, of all its segments",
        chart="tokens",
        series="all",
        short="tokens",
        in_live_view=True,
    ),
    "segments_mean": Metric(
        "segments per rollout",
        "segments",
        "mean segments per rollout: 1 where the chat template only appends, more where it rewrites earlier turns",
    ),
    "rollout_busy_s_mean": Metric(
        "busy time per rollout",
        "s",
        "mean model and tool time per rollout, without queues, retries and pauses",
        chart="rollout_time",
        series="busy",
        short="busy",
        in_live_view=True,
    ),
    "rollout_wall_s_mean": Metric(
        "wall-clock time per rollout", "s", "mean wall-clock time per rollout", chart="rollout_time", series="wall"
    ),
    "rollout_wall_s_p50": Metric(
        "median wall-clock time per rollout", "s", "wall-clock time that half of the step's rollouts did not exceed"
    ),
    "rollout_wall_s_p95": Metric(
        "95th percentile of the wall-clock time per rollout",
        "s",
        "wall-clock time that 95 % of the step's rollouts did not exceed",
    ),
    "grade_latency_s_mean": Metric(
        "grading time per rollout", "s", "mean latency of the grader per rollout", chart="rollout_time", series="grader"
    ),
    "grader/<grader>/score_mean": Metric(
        "score of a part of the grader",
        "",
        "mean score of one part of a multi grader; `ungated` is the score without guards",
        chart="grader_parts",
    ),
    "guard/<guard>": _count(
        "rewards set by a guard", "rollouts", "rollouts whose reward this guard set", chart="guards"
    ),
    "held_out_grade_mean": Metric(
        "held-out grade",
        "",
        "mean grade of the held-out grader, which nothing is trained on",
        chart="held_out",
        series="held out",
    ),
    "held_out_failures": _count(
        "failures of the held-out grader", "rollouts", "graded rollouts to which the held-out grader gave no grade"
    ),
    "judge_tokens/<model>": _count("tokens of a judge", "tokens", "tokens spent on one judge model"),
    "finish/<reason>": _count(
        "rollouts by finish reason",
        "rollouts",
        "rollouts that ended by answer, max_steps, max_tokens or context",
        chart="finish",
    ),
    "tool/<tool>/calls_mean": _file(
        "calls of a tool per rollout", "calls", "mean calls of one tool per rollout", chart="tool_calls"
    ),
    "tool/<tool>/latency_s_mean": Metric(
        "latency of a tool", "s", "mean latency of one tool's answers", chart="tool_latency"
    ),
    "tool/<tool>/output_tokens_mean": _file(
        "tokens of a tool's output",
        "tokens",
        "mean length of one tool's outputs; a turn's tokens are divided among its calls, and unknown between segments",
    ),
    "tool/<tool>/output_chars_mean": Metric(
        "length of a tool's output", "characters", "mean length of one tool's outputs"
    ),
    "tool/<tool>/errors": _count(
        "tool errors", "calls", "calls of one tool that were answered with an error, which the model sees"
    ),
    "call_errors/<kind>": _count(
        "invalid calls",
        "calls",
        "calls that the model got wrong: malformed_call, unknown_tool, invalid_arguments, over_budget, tool_error",
        chart="call_errors",
    ),
}

_LOSSES: dict[str, Metric] = {
    "rollouts_graded": _count("graded rollouts", "rollouts", "graded rollouts of the step's groups"),
    "mean_unresponsive_rewards": Metric(
        "discarded rollouts",
        "share",
        "share of the rollouts of the step's groups that were discarded",
        short="discarded",
        in_live_view=True,
        message="unresponsive rewards",
        csv=True,
    ),
    "discarded/<reason>": _count(
        "discarded rollouts by reason",
        "rollouts",
        "discarded rollouts by reason: tool_failed, grader_failed, rollout_timeout, rollout_waited, engine_failed, "
        "template_failed",
        chart="discarded",
    ),
    "groups_trained": _count(
        "groups trained", "groups", "groups that were trained on", chart="groups", series="trained"
    ),
    "groups_without_signal/<kind>": _count(
        "groups without signal",
        "groups",
        "groups whose rewards are all equal, which carry no signal: all_right, all_wrong, equal",
        chart="groups",
    ),
    "groups_lost": _count(
        "groups lost", "groups", "groups with fewer than two surviving rollouts", chart="groups", series="lost"
    ),
    "account/<state>": _file(
        "attempts at rollouts",
        "rollouts",
        "attempts since the start: started = graded + discarded + cancelled + in_flight",
    ),
    "slow_rows_ratio": Metric(
        "slow rows, relative",
        "",
        "graded share of the rollouts of the slowest quarter of groups, relative to that of all groups",
    ),
}

_FRESHNESS: dict[str, Metric] = {
    "staleness_mean": Metric(
        "staleness in versions",
        "versions",
        "policy versions by which a trained group's oldest token lags the learner, mean of the step",
        chart="staleness",
        series="mean",
        short="stale",
        in_live_view=True,
    ),
    "staleness_max": Metric(
        "largest staleness",
        "versions",
        "policy versions by which a trained group's oldest token lags the learner, largest of the step",
        chart="staleness",
        series="largest",
    ),
    "sync_pause_s": _spread(
        "pause per update",
        "s",
        "time that the slowest engine generated nothing because of a weight update",
        buckets=SECONDS,
        chart="sync",
        series="pause",
        short="pause",
        in_live_view=True,
    ),
    "sync_total_s": _spread(
        "weight sync time",
        "s",
        "time to send the learner's weights to all engines",
        buckets=SECONDS,
        chart="sync",
        series="whole sync",
    ),
    "sync_bytes": _spread("bytes per weight sync", "bytes", "weights sent to each engine per update", buckets=BYTES),
    "canary_gap": Metric(
        "gap on the canary",
        "nats",
        "mean absolute log-probability difference of engines and learner on the canary, with the same weights",
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
        form="{:.4f}",
    ),
    "grad_norm": Metric(
        "gradient norm", "", "norm of the gradient before clipping", chart="grad_norm", series="before clipping"
    ),
    "learning_rate": Metric(
        "learning rate", "", "learning rate of the step's update, as the schedule sets it", form="{:.2e}"
    ),
    "entropy": Metric(
        "entropy",
        "nats",
        "mean entropy of the distributions of trained tokens, in nats",
        chart="entropy",
        series="entropy",
    ),
    "importance_ratio_mean": Metric(
        "importance ratio",
        "",
        "mean ratio of the learner's to the engine's probability, over trained tokens",
        series="all tokens",
    ),
    "importance_capped_share": Metric(
        "tokens with a truncated weight",
        "share",
        "share of trained tokens whose importance weight was truncated",
        chart="limited",
        series="weight truncated",
    ),
    "clipped_share": Metric(
        "clipped tokens",
        "share",
        "share of trained tokens whose ratio was clipped",
        chart="limited",
        series="ratio clipped",
    ),
    "diverged_share": Metric(
        "diverged tokens",
        "share",
        "share of trained tokens left out because the learner's probability has moved too far from the engine's",
        chart="limited",
        series="diverged",
    ),
    "kl_start": Metric(
        "KL to the start model", "nats", "KL divergence from the start model, in nats; only if kl_coef is above 0"
    ),
    "logprob_gap": Metric(
        "log-probability gap",
        "nats",
        "mean absolute log-probability difference of engines and learner on tokens of the learner's version",
        chart="gap",
        series="trained tokens",
    ),
    "logprob_gap_ratio": Metric(
        "ratio at equal versions",
        "",
        "mean ratio of the learner's to the engine's probability, over tokens of the learner's version",
        series="same version",
    ),
    "logprob_gap_tokens": Metric(
        "tokens of the gap", "tokens", "tokens that logprob_gap and logprob_gap_ratio are means over"
    ),
    "tokens_without_loss": _count(
        "tokens without loss",
        "tokens",
        "sampled tokens whose mask under the response format the learner could not compute, because the engine had "
        "another version of the grammar library or of the tokenizer",
    ),
    "trained_tokens": _count("trained tokens", "tokens", "tokens in the loss", series="trained"),
    "computed_tokens": _count(
        "computed tokens",
        "tokens",
        "tokens that went through the model, padding included; those that rollouts begin with in common once, on cores",
        series="computed",
    ),
    "padding_efficiency": Metric("padding efficiency", "share", "share of packed tokens that are not padding"),
    "num_micro_batches": Metric("micro-batches per rank", "", "micro-batches of the step on each rank"),
    "update_applied": Metric(
        "update applied", "", "1 if the update was applied, 0 if it was skipped because the gradient was not finite"
    ),
}

_TIMES: dict[str, Metric] = {
    "time_wait_s": _spread(
        "waiting for rollouts",
        "s",
        "time that the learner waited for rollouts",
        buckets=LONG_SECONDS,
        chart="step_time",
        series="waiting",
    ),
    "engine_busy_share": Metric(
        "busy engines",
        "share",
        "share of the time since the step before for which an engine had requests to run, as a mean over engines",
    ),
    "time_write_ahead_s": _spread(
        "writing ahead", "s", "time to record the batch before its update", buckets=SECONDS, series="writing ahead"
    ),
    "time_learn_s": _spread(
        "learning",
        "s",
        "time that the learner worked on the step's updates",
        buckets=LONG_SECONDS,
        chart="step_time",
        series="learning",
    ),
    "time_sync_s": _spread(
        "weight sync",
        "s",
        "time to publish the new weights to all engines",
        buckets=LONG_SECONDS,
        chart="step_time",
        series="weight sync",
    ),
    "time_eval_s": _spread(
        "validation",
        "s",
        "time to evaluate the validation file, in steps that do",
        buckets=LONG_SECONDS,
        chart="step_time",
        series="validation",
    ),
    "time_checkpoint_s": _spread(
        "checkpoint",
        "s",
        "how long a checkpoint stops the loop, in steps that save one: a copy, and the end of the write before",
        buckets=LONG_SECONDS,
        series="checkpoint",
    ),
    "time_step_s": _spread(
        "whole step",
        "s",
        "time of the whole step, validation and checkpoint included",
        buckets=LONG_SECONDS,
        series="whole step",
    ),
}

STEP_GROUPS: dict[str, dict[str, Metric]] = {
    "Where the job is": _PROGRESS,
    "How well it does": _REWARDS,
    "How it works": _BEHAVIOR,
    "What was lost": _LOSSES,
    "How fresh it is": _FRESHNESS,
    "The learner": _LEARNER,
    "Where the time went": _TIMES,
}
"""The metrics below the headings of the reference."""
STEP_METRICS = {name: metric for group in STEP_GROUPS.values() for name, metric in group.items()}
