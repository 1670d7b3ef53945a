"""The schemas of all responses, for the OpenAPI page: every key of every response and no others.

The responses themselves are built elsewhere, as plain values; a contract test checks those of the whole API against
these schemas.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from cluster.records.wanted import Ended
from cluster.stores.job_states import JobStatus
from cluster.stores.keys import Scope
from serve.http.errors import ErrorBody
from trainer.problem_codes.readiness import Verdict

T = TypeVar("T")
Responses = dict[int | str, dict[str, Any]]


EVENT = {"type": "object", "properties": {"event": {"type": "string"}, "data": {"type": "string"}}}
"""The schema of a server-sent event."""


def answers(model: Any, *, streams: bool = False) -> Responses:
    """Returns the `responses` of a route that answers with `model`, and if `streams` also with server-sent events."""
    described: dict[str, Any] = {"model": model}
    if streams:
        described["content"] = {"text/event-stream": {"schema": EVENT}}
    return {200: described, "5XX": {"model": ErrorBody}}


class ResponseBody(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Page(ResponseBody, Generic[T]):
    """A part of a list; request the next one with `after=<last_id>` while `has_more` is true."""

    object: Literal["list"]
    data: list[T]
    """The entries."""
    has_more: bool
    """Whether there are entries after `last_id`."""
    first_id: str | None
    """Id of the first entry of `data`; null if it is empty."""
    last_id: str | None
    """Id of the last entry of `data`, for `after` of the next request; null if it is empty. A search for a text
    may have looked beyond it, also if it has found nothing so far."""


class FileObject(ResponseBody):
    id: str
    """`file-...`."""
    object: Literal["file"]
    bytes: int
    """Size of the file."""
    created_at: int
    """Unix time in seconds."""
    expires_at: int | None
    """Unix time in seconds at which the file is deleted; null: never."""
    filename: str
    """The name that it was uploaded with."""
    purpose: str
    """What it was uploaded for; `fine-tune-results` for result files of jobs."""
    status: Literal["processed"]
    """Files are checked when a job reads them, so every stored file is processed."""
    status_details: str | None
    """Always null."""


class DeletedFile(ResponseBody):
    id: str
    object: Literal["file"]
    deleted: bool


class JobFailure(ResponseBody):
    code: str
    """A problem code of the manual, such as invalid_training_file."""
    message: str
    """What went wrong, where, and what to do."""
    param: str | None
    """The field of the request that is wrong, if it is one."""


class JobProgress(ResponseBody):
    """How far a job is, and how well it does now against before."""

    metric: Literal["reward", "loss"]
    """What its numbers are: a supervised job has a loss."""
    step: int
    """Training steps done."""
    total_steps: int | None
    """Training steps planned; null before the first one."""
    train: float | None
    """Mean of the last step; null: not measured."""
    validation: float | None
    """Mean of the last validation; null: there was none."""
    baseline: float | None
    """What training is compared with: see `baseline_of`."""
    baseline_of: Literal["train", "validation"] | None
    """validation: the file before the first step; train: the first step's rollouts; null: there is no baseline yet."""


class Job(ResponseBody):
    """A fine-tuning job."""

    id: str
    """`ftjob-...`."""
    object: Literal["fine_tuning.job"]
    created_at: int
    """Unix time in seconds."""
    finished_at: int | None
    """Unix time in seconds at which the job succeeded, failed or was cancelled; null before."""
    estimated_finish: int | None
    """Unix time in seconds; null unless the job is running and has done enough steps for an estimate."""
    model: str
    """Id of the start model, as in the request."""
    fine_tuned_model: str | None
    """Id of the tuned model, for chat and responses; null until the job has succeeded."""
    organization_id: str
    """`local`: a server has one organization."""
    status: JobStatus
    """`validating_files`, then `queued`, `running`, and at last `succeeded`, `failed` or `cancelled`; or `paused`."""
    error: JobFailure | None
    """Why the job failed; null otherwise."""
    hyperparameters: dict[str, Any]
    """The same as in `method`; clients of older versions of OpenAI's API read them here."""
    method: dict[str, Any]
    """The request's, with all hyperparameters filled in and without secrets."""
    model_options: dict[str, Any] | None
    """Those of the request, or null."""
    training_file: str
    """Id of the training file."""
    validation_file: str | None
    """Id of the validation file, or null."""
    test_file: str | None
    """Id of the test file, or null."""
    result_files: list[str]
    """Ids of a CSV file with the metrics of each step."""
    trained_tokens: int | None
    """Tokens that were trained so far; null before the first step."""
    seed: int
    """Seed of the order of rows and of sampling: the request's, or a random one."""
    suffix: str | None
    """Part of the tuned model's name."""
    metadata: dict[str, str] | None
    """The pairs of the request."""
    integrations: list[dict[str, Any]]
    """The trackers of the request."""
    progress: JobProgress | None
    """If the request says `include=progress`; null before the job has measured anything."""


class JobProblem(ResponseBody):
    """A mistake in a request for a job, its files, its model, its tools or graders."""

    code: str
    """See [problem codes](problems.md)."""
    field: str
    """The field of the request, such as `method.reinforcement.grader.url`, or of a row of a file."""
    line: int | None
    """The line of the file, or the first of several; null: of no line."""
    rows: str
    """All lines of a mistake that several rows share, such as `1-7, 9`; else empty."""
    message: str
    """What is wrong."""
    remedy: str
    """What to do."""


class JobCheck(ResponseBody):
    """What is wrong with a request for a job: an extension of OpenAI's API."""

    object: Literal["fine_tuning.job.check"]
    valid: bool
    """Whether nothing was found. The created job's tools and grader are called before it runs; here they are not."""
    problems: list[JobProblem]
    """All mistakes: of the form, or if it is right, of the files, model, tools and graders."""


class ReadinessReason(ResponseBody):
    """A reason of a verdict, or a note."""

    code: str
    """See [what the codes mean](readiness.md)."""
    decides: bool
    """Whether it decides the verdict; false for a note."""
    message: str
    """What was measured."""
    remedy: str
    """What to do about it."""


class ReadinessBody(ResponseBody):
    """Whether a job is worth training: a look at it before the first step."""

    id: str
    """`ftready-...`."""
    object: Literal["fine_tuning.readiness"]
    created_at: int
    """Unix time in seconds."""
    finished_at: int | None
    """Unix time in seconds at which it succeeded, failed or was cancelled; null before."""
    model: str
    """Id of the start model, as in the request."""
    status: JobStatus
    """As of a job; `succeeded` means that there is a verdict, whichever it is."""
    error: JobFailure | None
    """Why it failed; null otherwise."""
    method: dict[str, Any]
    """The request's, with all hyperparameters filled in and without secrets."""
    training_file: str
    """Id of the training file, whose rows are drawn."""
    validation_file: str | None
    """Id of the validation file, or null."""
    test_file: str | None
    """Id of the test file, or null."""
    seed: int
    """Seed of sampling: the request's, or a random one."""
    suffix: str | None
    """The text of the request, or null."""
    metadata: dict[str, str] | None
    """The pairs of the request."""
    samples: int
    """Draws of each row."""
    target_latency_s: float | None
    """Wanted model and tool time of a rollout in seconds, or null."""
    verdict: Verdict | None
    """`train`, `fix_first` or `warm_start`; null until it has succeeded."""
    reasons: list[ReadinessReason]
    """Why: the reasons that decide, then notes."""
    findings: dict[str, Any] | None
    """All that was found, without the rows; null until it has succeeded."""
    result_files: list[str]
    """Ids of `readiness.json`, the findings with each row, and of `readiness.html`, the same as a page."""


class JobEventBody(ResponseBody):
    """What happened in a job."""

    id: str
    """`ftevent-...`."""
    object: Literal["fine_tuning.job.event"]
    created_at: int
    """Unix time in seconds."""
    level: Literal["info", "warn", "error"]
    """How serious it is."""
    type: Literal["message", "metrics"]
    """metrics: the numbers of one step, in `data`; message: anything else."""
    message: str
    """A sentence for people."""
    data: dict[str, Any] | None
    """The metrics of a step, or details of a message; null: none."""


class JobOutput(ResponseBody):
    """The end of what one process of a job wrote."""

    process: Literal["validation", "driver"]
    """Which process it was."""
    attempt: int
    """The number of the driver, from 1; 0 for the validation."""
    written_at: int
    """When it last wrote, as Unix time in seconds."""
    text: str
    """The end of its output, without secrets."""


class JobLog(ResponseBody):
    """What only admins see of a job: an extension of OpenAI's API."""

    object: Literal["fine_tuning.job.log"]
    job_id: str
    """Id of the job."""
    error: str | None
    """The error of the job with what it quotes, which the job itself does not show; null: it has none."""
    outputs: list[JobOutput]
    """Its processes, oldest first. Outputs are kept for 30 days, those of the last ten drivers."""


class Checkpoint(ResponseBody):
    """A saved state of a job's model."""

    id: str
    """`ftckpt-...`."""
    object: Literal["fine_tuning.job.checkpoint"]
    created_at: int
    """Unix time in seconds."""
    fine_tuned_model_checkpoint: str
    """Id under which the checkpoint is served as a model."""
    fine_tuning_job_id: str
    """Id of its job."""
    step_number: int
    """The training step after which it was saved."""
    metrics: dict[str, float]
    """Metrics of that step and of the validation after it."""


class JobRollout(ResponseBody):
    """One rollout of a job: an extension of OpenAI's API."""

    id: str
    """Its place in the files of the run, such as `step-000012.57`, for `after`."""
    object: Literal["fine_tuning.job.rollout"]
    fine_tuning_job_id: str
    """Id of its job."""
    file: str
    """The rollout file that it is in, such as step-000012, validation-000005 or test-after."""
    request: dict[str, Any]
    """What was asked for: the task with its row, epoch, purpose, temperature."""
    rollout: dict[str, Any]
    """As in the rollout file. `kind` is `rollout`: turns with calls and results, answer, grade, reward, tokens; or
    `discarded`: the reason. A rollout on its own has `num_tokens` of its segments; `.../tokens` has their tokens."""


class JobRolloutSummary(ResponseBody):
    """A rollout in a list with `view=summary`: an extension of OpenAI's API."""

    id: str
    """Its place in the files of the run, such as `step-000012.57`, for `after` and for its own route."""
    object: Literal["fine_tuning.job.rollout.summary"]
    file: str
    """The rollout file that it is in, such as step-000012, validation-000005 or test-after."""
    step: int | None
    """The step of its file; null for tests."""
    trace_id: str
    row_id: str
    """The row: its line and a digest of it."""
    sample: int
    """Its number in its group."""
    grade: float | None
    """null if it was discarded, as all that follows."""
    reward: float | None
    finish: Ended
    """How it ended."""
    tools: list[str]
    """Tools that it called, each once."""
    errors: list[str]
    """Errors of its calls, each once, or the reason why it was discarded."""
    num_calls: int | None
    num_sampled: int | None
    """Tokens that the model sampled."""
    wall_s: float | None
    """Seconds from its start to its end."""
    answer: str
    """The beginning of its answer."""


class RolloutToken(ResponseBody):
    id: int
    text: str | None
    """What it adds to the text; null if the server has no tokenizer of the model."""
    logprob: float | None
    """Log-probability under the engine; null if it was not sampled."""
    version: int | None
    """The policy version that sampled it; null if it was not sampled."""


class RolloutTokens(ResponseBody):
    """Tokens of a segment of a rollout, as the engine saw them: an extension of OpenAI's API."""

    object: Literal["fine_tuning.job.rollout.tokens"]
    rollout_id: str
    segment: int
    start: int
    """Number of the first of `tokens` in the segment."""
    num_tokens: int
    """All tokens of the segment, with its prompt."""
    tokens: list[RolloutToken]


class JobRowRewards(ResponseBody):
    """How the rewards of a row's rollouts are distributed: an extension of OpenAI's API."""

    id: str
    """The row: its line and a digest of it."""
    object: Literal["fine_tuning.job.row_rewards"]
    num_rollouts: int
    """Those with a reward."""
    num_discarded: int
    """Those without."""
    mean: float | None
    """Mean, least and greatest reward; null if all rollouts were discarded."""
    min: float | None
    max: float | None
    bins: list[int]
    """Rollouts in each tenth of `range`."""
    range: tuple[float, float]
    """The least and the greatest reward of all rows of the list."""


class IndexedFile(ResponseBody):
    name: str
    """Such as step-000012, validation-000005 or test-after."""
    step: int | None
    num_rollouts: int


class RolloutFilters(ResponseBody):
    """What the rollouts of a job can be filtered by: an extension of OpenAI's API."""

    object: Literal["fine_tuning.job.rollout_filters"]
    files: list[IndexedFile]
    """The rollout files, oldest first."""
    tools: list[str]
    """Tools that were called."""
    errors: list[str]
    """Errors of calls, and reasons why rollouts were discarded."""


class EngineNow(ResponseBody):
    name: str
    state: Literal["waits", "starts", "asleep", "ready"]
    """`waits` for room in the cluster, `starts` or loads weights, `asleep` while the learner has its GPUs, `ready`."""
    rollouts: int
    """Rollouts in flight on it."""


class DoingNow(ResponseBody):
    """A piece of work in progress."""

    trace_id: str
    """Its rollout; empty: of none."""
    stage: str
    """`sampling`, `tool calls`, `grading`, `session start`, `weight update`, or a method of the learner."""
    for_s: float
    """How long it has lasted."""


class ActorNow(ResponseBody):
    """A process of the job: an engine, a learner rank, a dispatcher, or the graders'."""

    name: str
    doing: list[DoingNow]
    """What it does; of an engine, the rollouts that have been in each stage longest."""
    silent_s: float
    """For how long it has not answered."""


class EndpointNow(ResponseBody):
    """A tool, session server, grader or judge. Recent values are those of the last `recent_s`, about a minute."""

    name: str
    limit: float
    """Requests that it may have in progress now; the limit grows and falls with its answers."""
    in_flight: int
    queued: int
    """Requests that wait for their turn."""
    breaker: Literal["closed", "half_open", "open"]
    """open: it fails, so it gets only an occasional probe."""
    calls: int
    failed: int
    retries: int
    recent_s: float
    recent_calls: int
    recent_errors: dict[str, int]
    """By kind."""
    errors: dict[str, int]
    """By kind, since its processes started."""
    latency_p50_s: float | None
    """Median of recent answers; null: there were none."""
    latency_p95_s: float | None


class JobNow(ResponseBody):
    """What the processes of a job do at this moment: an extension of OpenAI's API."""

    object: Literal["fine_tuning.job.now"]
    fine_tuning_job_id: str
    """Id of its job."""
    status: JobStatus
    """The job's."""
    age_s: float | None
    """How old the rest is; null: the job has no processes, and all lists are empty."""
    engines: list[EngineNow]
    actors: list[ActorNow]
    endpoints: list[EndpointNow]


class JobEvaluation(ResponseBody):
    """Rollouts of a whole file with one version of the model: an extension of OpenAI's API."""

    id: str
    """Its name in the job, such as test-before or validation-000005."""
    object: Literal["fine_tuning.job.evaluation"]
    fine_tuning_job_id: str
    """Id of its job."""
    file: Literal["test_file", "validation_file", "training_file"]
    """Which file was graded."""
    num_rows: int | None
    """Rows of the file; null: not recorded."""
    samples: int | None
    """Rollouts of each row; null: not recorded."""
    grade: float | None
    """Mean grade; null: nothing was graded, or it is not recorded."""
    reward: float | None
    """Mean reward; null likewise."""


class EvaluationList(ResponseBody):
    object: Literal["list"]
    data: list[JobEvaluation]
    """Those of the test file first, the oldest first."""


class ComparedSide(ResponseBody):
    """One evaluation: means over the rows that all sides have graded."""

    label: str
    """Job and evaluation, `ftjob-...:test-after`."""
    run: str
    """Id of the job."""
    name: str
    """The evaluation."""
    num_rollouts: int
    """Rollouts of the compared rows."""
    means: dict[str, float | None]
    """Means over rows: grade, reward, busy_s, completion_tokens, tool_calls, turns."""
    turns_p95: float
    busy_p95_s: float
    repeated: float
    """Calls per rollout that it had made before."""
    tools: dict[str, dict[str, float]]
    """Calls per rollout by tool, and shares of failed, repeated, first and last ones."""
    rows_of_this_side_only: list[str]
    """Ids of rows that another side does not have."""
    rows_not_graded: list[str]
    """Ids of rows that this side has not graded."""


class ComparedRowSide(ResponseBody):
    """A row at one side: the means of its rollouts."""

    grade: float | None
    reward: float | None
    busy_s: float | None
    completion_tokens: float | None
    tool_calls: float | None
    turns: float | None
    trace_ids: list[str]
    """Its rollouts."""


class ComparedRow(ResponseBody):
    row_id: str
    """Id of the row."""
    question: str
    """The beginning of the last message of its prompt."""
    sides: list[ComparedRowSide]
    """The row at each side, in their order."""


class ComparisonBody(ResponseBody):
    """Evaluations row by row with the first: an extension of OpenAI's API."""

    object: Literal["fine_tuning.comparison"]
    sides: list[ComparedSide]
    """In the order of the request."""
    changes: list[dict[str, Any]]
    """Each other side against the first: `measures` with interval and verdict, `quadrants`, and ids of the rows that
    `gained` and `lost` most."""
    rows: list[ComparedRow]
    """The rows that all sides have graded."""


class JobMetrics(ResponseBody):
    """The metrics of one step: an extension of OpenAI's API."""

    id: str
    """`step-...`, for `after`."""
    object: Literal["fine_tuning.job.metrics"]
    fine_tuning_job_id: str
    """Id of its job."""
    step_number: int
    """The training step."""
    metrics: dict[str, float]
    """The metrics by name, see the manual; those that were not measured are left out."""


class JobSettings(ResponseBody):
    """What a job runs with: an extension of OpenAI's API."""

    object: Literal["fine_tuning.job.settings"]
    fine_tuning_job_id: str
    """Id of the job."""
    job: dict[str, Any] | None
    """The job with all defaults filled in, without secrets; null before it has begun."""
    plan: dict[str, Any] | None
    """What was derived from it and its files, such as the number of steps; null before it has begun."""


class ModelBody(ResponseBody):
    id: str
    """The name for `model` in requests."""
    object: Literal["model"]
    created: int
    """Unix time in seconds; 0: unknown."""
    owned_by: str
    """Who made it."""


class ModelList(ResponseBody):
    object: Literal["list"]
    data: list[ModelBody]


class DeletedModel(ResponseBody):
    id: str
    object: Literal["model"]
    deleted: bool


class ApiKeyBody(ResponseBody):
    """An API key without its secret: an extension of OpenAI's API."""

    id: str
    """The part of the key that is not secret."""
    object: Literal["api_key"]
    name: str
    """Who or what it is for."""
    scopes: list[Scope]
    """`read`, `write` or `admin`; each includes those before it."""
    created_at: int
    """Unix time in seconds."""
    expires_at: int | None
    """Unix time in seconds; null: it works until it is revoked."""
    revoked_at: int | None
    """Unix time in seconds; null: it is not revoked."""
    requests_per_minute: int | None
    """Its rate limit; null: the server's."""
    is_own: bool
    """Whether the request was made with it."""


class NewApiKey(ApiKeyBody):
    key: str
    """The key itself, `sk-rft-...`; no other response has it."""


class ApiKeyList(ResponseBody):
    object: Literal["list"]
    data: list[ApiKeyBody]
    """All keys, oldest first."""


# -- graders and tools -------------------------------------------------------------------------------------------------


class ValidGrader(ResponseBody):
    """The parsed grader, without secrets."""

    grader: dict[str, Any]


class GraderErrors(ResponseBody):
    formula_parse_error: bool
    """`calculate_output` cannot be computed."""
    sample_parse_error: bool
    """Never true; OpenAI's clients expect the key."""
    truncated_observation_error: bool
    """Never true; OpenAI's clients expect the key."""
    unresponsive_reward_error: bool
    """The grader's endpoint did not answer by its deadline."""
    invalid_variable_error: bool
    """A path of a template does not exist in the row or the sample."""
    other_error: bool
    """A failure that none of the other keys names."""
    python_grader_server_error: bool
    """The sandbox failed: its worker was lost, or the grade took too long."""
    python_grader_server_error_type: str | None
    python_grader_runtime_error: bool
    """The code of a python grader raised, or returned no finite number."""
    python_grader_runtime_error_details: str | None
    model_grader_server_error: bool
    """The judge's endpoint failed."""
    model_grader_refusal_error: bool
    """The judge refused to grade."""
    model_grader_parse_error: bool
    """The judge's answers did not have the requested form."""
    model_grader_server_error_details: str | None


class GraderRunMetadata(ResponseBody):
    name: str
    """The grader's name, else its type."""
    type: str
    execution_time: float
    """Seconds."""
    scores: dict[str, Any]
    """For a multi grader the grade of each part by name; otherwise empty."""
    sampled_model_name: str | None
    """The judge's name; null if there is none."""
    token_usage: int | None
    """Tokens that judges used; null: none."""
    errors: GraderErrors


class GraderRun(ResponseBody):
    """If one of `metadata.errors` is true, the grader failed and `reward` is not a grade."""

    reward: float
    """The grade; 0 if the grader failed."""
    sub_rewards: dict[str, Any]
    """For a multi grader the grade of each part by name; otherwise empty."""
    model_grader_token_usage_per_model: dict[str, Any]
    """Tokens that each judge used, by name."""
    metadata: GraderRunMetadata
    """The grader's name and type, its time in seconds, and which error occurred."""


class ToolOutput(ResponseBody):
    """The result of a tool call as a model would see it."""

    type: Literal["function_call_output"]
    id: str
    """The request's `id`, or a new one."""
    call_id: str
    """Id of the call."""
    output: str
    """The text that a model would see, also of an error."""
    error: str | None
    """The kind of the error that the model would see; null: none."""
    latency_s: float
    """Seconds from the request to the answer, without waits."""


# -- models' answers ---------------------------------------------------------------------------------------------------


class AnswerFunction(ResponseBody):
    name: str
    arguments: str
    """A JSON object as text, written by the model: it may be invalid."""


class AnswerCall(ResponseBody):
    id: str
    type: Literal["function"]
    function: AnswerFunction


class AnswerMessage(ResponseBody):
    """The answer of a model: text, calls or both."""

    role: Literal["assistant"]
    content: str | None
    """The answer; null if there are only calls."""
    refusal: str | None
    annotations: list[Any] | None = None
    reasoning: str | None = None
    """The model's thoughts; left out if there are none."""
    tool_calls: list[AnswerCall] | None = None


class Choice(ResponseBody):
    index: int
    message: AnswerMessage
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    """stop: the model has ended its answer; length: a limit of tokens was reached; tool_calls: it waits for the results
    of `tool_calls`."""


class CachedTokens(ResponseBody):
    cached_tokens: int
    """Tokens of the prompt that the engine had computed before."""


class ReasoningTokens(ResponseBody):
    reasoning_tokens: int
    """Those of `completion_tokens` or `output_tokens` that are thoughts."""


class Usage(ResponseBody):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class BestOf(ResponseBody):
    """How the answer was chosen."""

    scores: list[float | None]
    """The grade of each sample; null: its grading failed."""
    best: int
    """Index in `scores` of the sample that is returned."""


class ChatCompletionBody(ResponseBody):
    id: str
    object: Literal["chat.completion"]
    created: int
    """Unix time in seconds."""
    model: str
    choices: list[Choice]
    usage: Usage
    system_fingerprint: str | None = None
    service_tier: str | None = None
    metadata: BestOf | None = None
    """Present if the request has a `grader`."""


class InputDetails(ResponseBody):
    cached_tokens: int
    """Tokens of the input that the engine had computed before."""
    cache_write_tokens: int


class ResponseUsage(ResponseBody):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class OutputText(ResponseBody):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class OutputMessage(ResponseBody):
    type: Literal["message"]
    id: str
    role: Literal["assistant"]
    status: Literal["completed", "incomplete"]
    content: list[OutputText]


class OutputCall(ResponseBody):
    type: Literal["function_call"]
    id: str
    status: Literal["completed", "incomplete"]
    call_id: str
    """To be repeated in the `function_call_output` with the result."""
    name: str
    arguments: str
    """A JSON object as text, written by the model: it may be invalid."""


class OutputReasoning(ResponseBody):
    """The thoughts before an answer."""

    type: Literal["reasoning"]
    id: str
    summary: list[Any]
    """Always empty."""
    encrypted_content: str | None = None
    """The thoughts, sealed for this server; present if `include` asked for it. Send the item back in the next turn."""


class IncompleteDetails(ResponseBody):
    reason: Literal["max_output_tokens"]


class Response(ResponseBody):
    """The output, and the settings of the request."""

    id: str
    object: Literal["response"]
    created_at: int
    """Unix time in seconds."""
    completed_at: int | None
    """Unix time in seconds; null if the response is incomplete."""
    status: Literal["completed", "incomplete"]
    """incomplete: a limit of tokens was reached."""
    background: Literal[False]
    error: None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputMessage | OutputCall | OutputReasoning]
    """Reasoning, then a message or calls, in this order."""
    parallel_tool_calls: bool
    previous_response_id: None
    """Always null: responses are not stored."""
    reasoning: dict[str, Any]
    service_tier: Literal["default"]
    store: Literal[False]
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage
    user: None


class SessionKey(ResponseBody):
    id: str
    name: str
    scopes: list[Scope]
    """What the key may do; each scope includes those before it: read, write, admin."""


class ConsoleSession(ResponseBody):
    """What a browser's session may do."""

    object: Literal["console.session"]
    key: SessionKey
    """The API key that opened the session, and with which it ends."""
    read_only: bool
    """Whether nothing can be created or changed here, whatever the key's scopes are."""


class DeletedSession(ResponseBody):
    object: Literal["console.session"]
    deleted: Literal[True]
