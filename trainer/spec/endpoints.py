"""Settings of the HTTP endpoints of a job: tools, sessions, and what all endpoints have in common.

The models are frozen and reject unknown keys, except that a tool keeps its own. Names of settings include their units.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

Headers = dict[str, SecretStr]
Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
MAX_OUTPUT_BYTES = 1_000_000
"""Largest tool output that OpenAI's API accepts."""


class Strict(BaseModel):
    """Base class of all parts of a job: frozen, no unknown keys, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Endpoint(Strict):
    """An HTTP endpoint and its limits.

    Attributes:
        timeout_s: Deadline of a call, including all waits and retries.
        attempt_timeout_s: Deadline of a single request, so that an occasional hang costs a retry and not the rollout.
            None: the rest of `timeout_s`.
        max_concurrency: Upper bound of the adaptive concurrency limit, which shrinks while the endpoint is overloaded.
        max_retries: Retries after connection errors, timeouts and 5xx. Waiting after 408, 425, 429 or 503 does not
            count as a retry.
    """

    headers: Headers = {}
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 120.0
    attempt_timeout_s: Annotated[float, Field(gt=0, le=600)] | None = None
    max_concurrency: Positive = 64
    rate_limit_per_s: Annotated[float, Field(gt=0)] | None = None
    max_retries: Annotated[int, Field(ge=0, le=10)] = 3


class ToolSpec(Endpoint):
    """A tool endpoint. The tool's JSON schema comes with each dataset row, matched by `name`; unknown keys are kept.

    If `hedge_after_s` is set, a second request is sent after that time while the first is still in flight (hedging).
    This requires an `idempotent` tool.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str
    server_url: str
    max_output_bytes: Annotated[int, Field(ge=1, le=MAX_OUTPUT_BYTES)] = MAX_OUTPUT_BYTES
    idempotent: bool = False
    hedge_after_s: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _only_idempotent_tools_are_hedged(self) -> ToolSpec:
        if self.hedge_after_s is not None and not self.idempotent:
            raise ValueError("hedge_after_s may send a call twice: set idempotent: true if the tool allows that")
        return self


class SessionSpec(Endpoint):
    """Notifies the user's server when a rollout starts and when it has ended, on every path.

    POST {type, trace_id, item} to `start_url` before the first token, POST {type, trace_id, reason} to `end_url` after
    the rollout. At most `max_open` sessions are open at a time. `rate_limit_per_s` limits how fast they are opened,
    `timeout_s` how long opening one may take (the server may have to boot a machine).
    """

    start_url: str | None = None
    end_url: str | None = None
    max_open: Positive | None = None

    @model_validator(mode="after")
    def _names_a_url(self) -> SessionSpec:
        if self.start_url is None and self.end_url is None:
            raise ValueError("start_url, end_url or both are required")
        return self
