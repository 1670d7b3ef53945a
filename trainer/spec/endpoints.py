"""Endpoints as a job names them: tools, sessions, and what every place that is called over HTTP has in common.

Frozen; unknown keys are refused (a tool's are kept for the tool); units stand in the names.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

Headers = dict[str, SecretStr]
Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
MAX_OUTPUT_BYTES = 1_000_000
"""What the wire contract lets one call give back to the model."""


class Strict(BaseModel):
    """Base of all parts of a job."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Endpoint(Strict):
    """A place that is called over HTTP, and how hard it may be called.

    `max_concurrency` is the upper end of a limit that adapts: it shrinks while the endpoint does not keep up.
    `max_retries` counts tries after connection errors, timeouts and 5xx; waiting on 408, 425, 429, 503 is no retry.
    `timeout_s` is the whole time of a call, waits and retries included; one request of it may take `attempt_timeout_s`
    (None: all that is left), so that a server that hangs now and then costs a retry and not the rollout.
    """

    headers: Headers = {}
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 120.0
    attempt_timeout_s: Annotated[float, Field(gt=0, le=600)] | None = None
    max_concurrency: Positive = 64
    rate_limit_per_s: Annotated[float, Field(gt=0)] | None = None
    max_retries: Annotated[int, Field(ge=0, le=10)] = 3


class ToolSpec(Endpoint):
    """Where a tool lives. Its JSON schema comes with each row, joined on `name`. Unknown keys are kept for the tool.

    An `idempotent` tool may be asked a second time while the first request is still on its way (hedging), which is
    done after `hedge_after_s`; None: never.
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
            raise ValueError("hedge_after_s may send a call twice; set idempotent: true if the tool bears that")
        return self


class SessionSpec(Endpoint):
    """Tells the user's server when a rollout opens and, on every path, when it has ended: POST {type, trace_id, item}
    to `start_url` before its first token, POST {type, trace_id, reason} to `end_url` afterwards. At most `max_open`
    sessions are open at a time; `rate_limit_per_s` bounds how fast they are opened, `timeout_s` how long opening one
    (a machine that boots) may take.
    """

    start_url: str | None = None
    end_url: str | None = None
    max_open: Positive | None = None

    @model_validator(mode="after")
    def _names_a_url(self) -> SessionSpec:
        if self.start_url is None and self.end_url is None:
            raise ValueError("give start_url, end_url or both")
        return self
