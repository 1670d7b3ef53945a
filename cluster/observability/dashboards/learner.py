"""Training metrics of the updates, and the agreement of engines and learner."""

from __future__ import annotations

from cluster.observability.dashboards.grafana import Dashboard, Panel, Query
from cluster.observability.dashboards.queries import ANNOTATIONS, JOB, JOBS, mean, rate

LEARNER_DASHBOARD = Dashboard(
    "learner",
    "agent-rft: Learner",
    (
        (
            "Updates",
            (
                Panel(
                    "Loss",
                    (
                        Query(f"agent_rft_loss{JOB}", "train {{job}}"),
                        Query(f"agent_rft_full_valid_loss{JOB}", "validation {{job}}"),
                    ),
                    "none",
                    about="Validation loss: supervised jobs only.",
                ),
                Panel(
                    "Entropy", (Query(f"agent_rft_entropy{JOB}"),), "none", about="Mean over trained tokens, in nats."
                ),
                Panel("Gradient norm", (Query(f"agent_rft_grad_norm{JOB}"),), "none", about="Before clipping to 1."),
                Panel("Learning rate", (Query(f"agent_rft_learning_rate{JOB}"),), "sci"),
                Panel(
                    "KL to the start model",
                    (Query(f"agent_rft_kl_start{JOB}"),),
                    "none",
                    about="Only if kl_coef is above 0.",
                ),
                Panel(
                    "Update applied",
                    (Query(f"agent_rft_update_applied{JOB}"),),
                    "none",
                    about="0: skipped, because the gradient was not finite.",
                ),
            ),
        ),
        (
            "Agreement of engines and learner",
            (
                Panel(
                    "Log-probability gap",
                    (
                        Query(f"agent_rft_logprob_gap{JOB}", "trained tokens {{job}}"),
                        Query(f"agent_rft_canary_gap{JOB}", "canary {{job}}"),
                    ),
                    "none",
                    about="Mean absolute, in nats, on the same weights: about 1e-6 in float32, 0.02 in bfloat16.",
                ),
                Panel(
                    "Importance ratio",
                    (
                        Query(f"agent_rft_importance_ratio_mean{JOB}", "all tokens {{job}}"),
                        Query(f"agent_rft_logprob_gap_ratio{JOB}", "same version {{job}}"),
                    ),
                    "none",
                ),
                Panel(
                    "Truncated and clipped tokens",
                    (
                        Query(f"agent_rft_importance_capped_share{JOB}", "weight truncated {{job}}"),
                        Query(f"agent_rft_clipped_share{JOB}", "ratio clipped {{job}}"),
                    ),
                    "percentunit",
                ),
                Panel(
                    "Weight sync time",
                    (
                        Query(mean("agent_rft_sync_total_seconds"), "total {{job}}"),
                        Query(mean("agent_rft_sync_pause_seconds"), "generation paused {{job}}"),
                    ),
                    "s",
                ),
            ),
        ),
        (
            "Throughput",
            (
                Panel(
                    "Padding efficiency",
                    (Query(f"agent_rft_padding_efficiency{JOB}"),),
                    "percentunit",
                    about="Share of computed tokens that are not padding.",
                ),
                Panel(
                    "Tokens per second",
                    (
                        Query(rate("agent_rft_trained_tokens_total"), "trained {{job}}"),
                        Query(rate("agent_rft_computed_tokens_total"), "computed {{job}}"),
                    ),
                ),
                Panel(
                    "Time of learner ranks by call",
                    (Query(rate("agent_rft_rank_seconds_sum", "job, process, call"), "{{call}} {{process}} {{job}}"),),
                    "percentunit",
                    stacked=True,
                ),
                Panel("Micro-batches per rank", (Query(f"agent_rft_num_micro_batches{JOB}"),), "none"),
            ),
        ),
    ),
    (JOBS,),
    ANNOTATIONS,
)
