"""Settings of a job's HTTP endpoints: tools, sessions, and the limits that all endpoints share.

The pydantic models are frozen and reject unknown keys, except `ToolSpec`, which keeps extra fields. Names of settings
include their units. The docstring below a setting is its description in the manual, in JSON schemas and on the OpenAPI
page.
"""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator
from pydantic_core import PydanticCustomError

from agent_rft.spec.api_keys import KEY_FIX, find_key_problem


def _strip(secret: SecretStr) -> SecretStr:
    return SecretStr(secret.get_secret_value().strip())


def _check_key(key: SecretStr) -> SecretStr:
    if (problem := find_key_problem(key.get_secret_value())) is not None:
        raise PydanticCustomError("value_error", "{problem}", {"problem": problem, "fix": KEY_FIX})
    return key


def _strip_url(url: str) -> str:
    if re.search(r"\s", url.strip()):
        raise PydanticCustomError("value_error", "contains white space", {"fix": "remove it"})
    return url.strip()


BaseUrl = Annotated[str, AfterValidator(_strip_url)]
"""URL in the operator's configuration, without surrounding white space."""
SecretText = Annotated[SecretStr, AfterValidator(_strip)]
"""Secret without surrounding white space, such as the trailing line break of the file that it was read from."""
Key = Annotated[SecretText, AfterValidator(_check_key)]
"""API key that is sent in a header."""
Headers = dict[str, SecretText]
MAX_COUNT = 1_000_000_000
"""Default upper bound for the value of a setting that is a count. Realistic values are far below this bound."""
PositiveInt = Annotated[int, Field(ge=1, le=MAX_COUNT)]
ProcessCount = Annotated[int, Field(ge=1, le=4_096)]
"""Number of processes, cores or GPUs; limited because a placement lists each of them."""
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
MAX_OUTPUT_BYTES = 1_000_000
"""Largest tool output that OpenAI's API accepts."""
MAX_TRIAL_CALL_S = 600.0
"""Maximum timeout, in seconds, of trial calls and of tools in imported jobs. It is OpenAI's limit."""
MAX_TIMEOUT_S = 6 * 3600
"""Largest timeout of a call, in seconds: long enough for builds and test suites."""


def _check_timeout(seconds: float) -> float:
    if seconds > MAX_TIMEOUT_S:
        fix = f"set at most {MAX_TIMEOUT_S}; start longer work in one call and fetch its result in another"
        message = "must be at most {limit} s (six hours)"
        raise PydanticCustomError("less_than_equal", message, {"limit": MAX_TIMEOUT_S, "fix": fix})
    return seconds


Timeout = Annotated[float, Field(gt=0, json_schema_extra={"maximum": MAX_TIMEOUT_S}), AfterValidator(_check_timeout)]
"""Seconds after which a call fails."""


class StrictModel(BaseModel):
    """Base class of all settings: instances are frozen, and unknown keys, NaN and infinity are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class Endpoint(StrictModel):
    """An HTTP endpoint and its limits."""

    headers: Headers = {}
    """HTTP headers sent with every request, such as `Authorization: Bearer ${TOOL_KEY}`. Values are secrets: they never
    appear in messages, logs or responses."""
    timeout_s: Timeout = 120.0
    """Time limit of a call in seconds, including queue time, all waits and all retries; at most 21,600 (six hours). A
    call that exceeds the limit fails. For a slow or busy endpoint, raise this and `limits.rollout_timeout_s`."""
    attempt_timeout_s: Timeout | None = None
    """Seconds after which a single request of a call is abandoned and retried; null: the rest of `timeout_s`. Set it if
    the endpoint sometimes hangs, so that a hang costs a retry and not the rollout."""
    max_concurrency: PositiveInt = 64
    """Maximum number of concurrent requests to this endpoint. The limit adapts: it shrinks, down to 1, while the
    endpoint is overloaded or slow, and then grows back. Raise it if calls queue although the endpoint could handle
    more."""
    rate_limit_per_s: Annotated[float, Field(gt=0)] | None = None
    """Maximum number of requests per second; null: no limit. Further calls wait, and the wait counts against
    `timeout_s`."""
    max_retries: Annotated[int, Field(ge=0, le=10)] = 3
    """Retries of a call after a lost connection, a timed-out attempt, or a 5xx status other than 503. After the last
    retry the call fails. Waits after 408, 425, 429 and 503 do not count as retries and continue until `timeout_s`."""

    def limit_to_trial(self) -> Self:
        """Return a copy for a trial call, with a `timeout_s` of at most MAX_TRIAL_CALL_S."""
        return self.model_copy(update={"timeout_s": min(self.timeout_s, MAX_TRIAL_CALL_S)})


class ToolSpec(Endpoint):
    """Endpoint of a tool. Extra fields are kept.

    Dataset rows contain the tool's JSON schema, under the same `name`.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str
    """Name of the tool, unique in the job. It must equal the function name in the `tools` of the dataset's rows. The
    entry in `tools` tells the model how to call the tool."""
    server_url: str
    """URL that receives each call as a POST with its name, arguments, trace id and row. A private address needs an
    entry in the operator's `allowed_networks`. No entry is needed if `allowed_networks` is not set and the command
    starts its own Ray cluster. For example, `agent-rft train` without `--address` starts its own Ray cluster."""
    max_output_bytes: Annotated[int, Field(ge=1, le=MAX_OUTPUT_BYTES)] = MAX_OUTPUT_BYTES
    """Maximum output of a call in bytes. If the output is longer, the model gets an error that asks it to request
    less."""
    idempotent: bool = False
    """Whether it is harmless to run the same call twice. It must be true if `hedge_after_s` is set. After a lost
    connection, a call is retried even if this is false. The retry has the same `Idempotency-Key` header."""
    hedge_after_s: Annotated[float, Field(gt=0)] | None = None
    """If a call has no answer after this many seconds, the call is sent again while the first request continues. The
    first answer wins. Set it somewhat above the usual latency to cut off rare slow answers. Requires `idempotent` to be
    true."""

    @model_validator(mode="after")
    def _check_hedging(self) -> ToolSpec:
        if self.hedge_after_s is not None and not self.idempotent:
            raise ValueError(
                "hedge_after_s may send a call twice. Set idempotent to true if running a call twice is harmless"
            )
        return self


class SessionSpec(Endpoint):
    """Requests that notify the user's server at the start and at the end of each rollout, even if the rollout fails.

    `rate_limit_per_s` limits how fast sessions are opened. `timeout_s` limits the time to open a session; opening can
    take long, for example if the server boots a VM. `max_concurrency` limits concurrent opens and, separately,
    concurrent closes.
    """

    start_url: str | None = None
    """URL that receives POST {type, trace_id, item} before a rollout's first token, for example to boot a VM for it;
    null: no request. If the request fails, the rollout is discarded and may be retried."""
    end_url: str | None = None
    """URL that receives POST {type, trace_id, reason} after the rollout; null: no request. The request is repeated
    until the server answers, even after a crash of the job."""
    max_open: PositiveInt | None = None
    """Maximum number of open sessions; null: no limit. Further rollouts wait before they start, for at most six times
    `limits.rollout_timeout_s`."""

    @model_validator(mode="after")
    def _check_urls(self) -> SessionSpec:
        if self.start_url is None and self.end_url is None:
            raise ValueError("start_url, end_url or both are required")
        return self
