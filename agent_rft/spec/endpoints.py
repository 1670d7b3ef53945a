"""Settings of the HTTP endpoints of a job: tools, sessions, and what all endpoints have in common.

The models are frozen and reject unknown keys, except that a tool keeps its own. Names of settings include their units.
The docstring below a setting is its description everywhere: in the manual, in JSON schemas and on the OpenAPI page.
"""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator
from pydantic_core import PydanticCustomError

from agent_rft.spec.keys import KEY_REMEDY, key_mistake


def _stripped(secret: SecretStr) -> SecretStr:
    return SecretStr(secret.get_secret_value().strip())


def _is_a_key(key: SecretStr) -> SecretStr:
    if (mistake := key_mistake(key.get_secret_value())) is not None:
        raise PydanticCustomError("value_error", "{mistake}", {"mistake": mistake, "remedy": KEY_REMEDY})
    return key


def _without_white_space(url: str) -> str:
    if re.search(r"\s", url.strip()):
        raise PydanticCustomError("value_error", "contains white space", {"remedy": "remove it"})
    return url.strip()


BaseUrl = Annotated[str, AfterValidator(_without_white_space)]
"""The address of a server of the operator's."""
SecretText = Annotated[SecretStr, AfterValidator(_stripped)]
"""A secret without the white space around it, such as the line break of the file that it was read from."""
Key = Annotated[SecretText, AfterValidator(_is_a_key)]
"""A key that is sent in a header."""
Headers = dict[str, SecretText]
MOST = 1_000_000_000
"""Bound of counts that have no narrower one: far more than anybody means, and few enough to compute with."""
Positive = Annotated[int, Field(ge=1, le=MOST)]
Processes = Annotated[int, Field(ge=1, le=4_096)]
"""How many processes, cores or GPUs: a job's placement lists each of them."""
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
MAX_OUTPUT_BYTES = 1_000_000
"""Largest tool output that OpenAI's API accepts."""
TRIAL_CALL_S = 600.0
"""Longest call at OpenAI, in seconds; calls of imported jobs and trial calls keep this limit."""
MAX_TIMEOUT_S = 6 * 3600
"""Largest timeout of a call, in seconds: enough for builds and test suites."""


def _at_most_six_hours(seconds: float) -> float:
    if seconds > MAX_TIMEOUT_S:
        remedy = f"set at most {MAX_TIMEOUT_S}; start longer work in one call, and ask for its result in another"
        message = "must be at most {limit} s (six hours)"
        raise PydanticCustomError("less_than_equal", message, {"limit": MAX_TIMEOUT_S, "remedy": remedy})
    return seconds


Timeout = Annotated[
    float, Field(gt=0, json_schema_extra={"maximum": MAX_TIMEOUT_S}), AfterValidator(_at_most_six_hours)
]
"""Seconds after which a call is given up."""


class Strict(BaseModel):
    """Base class of all parts of a job: frozen, no unknown keys, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class Endpoint(Strict):
    """An HTTP endpoint and its limits."""

    headers: Headers = {}
    """HTTP headers sent with every request, such as `Authorization: Bearer ${TOOL_KEY}`. Values are secrets: no
    message, log or response shows them."""
    timeout_s: Timeout = 120.0
    """Deadline of a call in seconds, from when it is queued, including all waits and retries; at most 21,600 (six
    hours). After the deadline the call has failed. Raise it for an endpoint that is slow or often busy, and then also
    `limits.rollout_timeout_s`."""
    attempt_timeout_s: Timeout | None = None
    """Seconds after which a single request of a call is abandoned and retried; null: the rest of `timeout_s`. Set it
    if the endpoint sometimes hangs, so that a hang costs a retry and not the rollout."""
    max_concurrency: Positive = 64
    """Most requests in flight to this endpoint at a time. The limit adapts: it shrinks, down to 1, while the endpoint
    is overloaded or slow, and grows back up to this number; raise it if calls queue although the endpoint has room."""
    rate_limit_per_s: Annotated[float, Field(gt=0)] | None = None
    """Most requests per second; null: no limit. Further calls wait their turn, and that wait counts against
    `timeout_s`."""
    max_retries: Annotated[int, Field(ge=0, le=10)] = 3
    """Retries of a call after lost connections, attempts that took too long, and 5xx other than 503; then the call has
    failed. Waits after 408, 425, 429 and 503 are not counted: they go on until `timeout_s`."""

    def for_trial(self) -> Self:
        """Return this endpoint with a `timeout_s` of at most `TRIAL_CALL_S`, for a trial call."""
        return self.model_copy(update={"timeout_s": min(self.timeout_s, TRIAL_CALL_S)})


class ToolSpec(Endpoint):
    """A tool endpoint. The tool's JSON schema comes with each dataset row, matched by `name`; unknown keys are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str
    """Name of the tool, unique in the job. It must be the name of the function in the `tools` of the dataset's rows,
    which say how the model may call it."""
    server_url: str
    """URL that receives each call as a POST with its name, arguments, trace id and row. Private addresses need an
    entry in the operator's `allowed_networks`, unless the command starts its own Ray cluster."""
    max_output_bytes: Annotated[int, Field(ge=1, le=MAX_OUTPUT_BYTES)] = MAX_OUTPUT_BYTES
    """Longest output of a call in bytes. In place of a longer one, the model sees an error that tells it to ask for
    less."""
    idempotent: bool = False
    """Whether running the same call twice does no harm. Only `hedge_after_s` needs it: after a lost connection a call
    is retried in any case, with the same `Idempotency-Key` header."""
    hedge_after_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds without an answer after which a call is sent again while the first is still in flight; the first answer
    wins. Set it to cut off rare slow answers, somewhat above the usual latency; needs `idempotent: true`."""

    @model_validator(mode="after")
    def _only_idempotent_tools_are_hedged(self) -> ToolSpec:
        if self.hedge_after_s is not None and not self.idempotent:
            raise ValueError("hedge_after_s may send a call twice: set idempotent: true if the tool allows that")
        return self


class SessionSpec(Endpoint):
    """Notifies the user's server when a rollout starts and when it has ended, on every path.

    `rate_limit_per_s` limits how fast sessions are opened, `timeout_s` how long opening one may take (the server may
    have to boot a machine), and `max_concurrency` how many are being opened at a time, and how many are being ended.
    """

    start_url: str | None = None
    """URL that receives POST {type, trace_id, item} before a rollout's first token, for example to boot a machine for
    it; null: no request. If it fails, the rollout is discarded and may be retried."""
    end_url: str | None = None
    """URL that receives POST {type, trace_id, reason} after the rollout; null: no request. It is repeated until the
    server has answered, also after a crash of the job."""
    max_open: Positive | None = None
    """Most sessions open at a time; null: no limit. Further rollouts wait before they start, and that wait has a
    limit of six times `limits.rollout_timeout_s`."""

    @model_validator(mode="after")
    def _names_a_url(self) -> SessionSpec:
        if self.start_url is None and self.end_url is None:
            raise ValueError("start_url, end_url or both are required")
        return self
