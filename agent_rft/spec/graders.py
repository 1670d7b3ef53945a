"""Settings of graders and guards: the grader types of OpenAI's API, plus extensions for self-hosted jobs."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, assert_never

from pydantic import AfterValidator, AliasChoices, Field, field_validator
from pydantic_core import PydanticCustomError

from agent_rft.spec.endpoints import Endpoint, PositiveInt, StrictModel

Similarity = Literal[
    "cosine",
    "fuzzy_match",
    "bleu",
    "gleu",
    "meteor",
    "rouge_1",
    "rouge_2",
    "rouge_3",
    "rouge_4",
    "rouge_5",
    "rouge_l",
]
MAX_SOURCE_BYTES = 256_000


def _check_order(value: tuple[float, float]) -> tuple[float, float]:
    if not value[0] < value[1]:
        raise ValueError("the first number must be less than the second")
    return value


Range = Annotated[tuple[float, float], AfterValidator(_check_order)]


class GraderBase(StrictModel):
    """Base class of the settings of graders.

    Settings described as templates may contain `{{ item.x }}` and `{{ sample.x }}`.
    """

    TEMPLATE_FIELDS: ClassVar[tuple[str, ...]] = ()
    """Names of the fields that are templates."""

    name: str | None = None
    """Name of the grader in messages; null: its type. In a `multi` grader, the keys of `graders` are the names."""
    pass_threshold: float = 1.0
    """Minimum grade that counts as passed. For the job's grader it affects only pass rates in metrics, never rewards;
    for a guard's grader it decides whether the guard applies."""

    @property
    def grade_range(self) -> tuple[float, float]:
        """Lowest and highest usual grade: the setting `range`, or 0 and 1 if `range` is not set.

        A grader without `range` may also give other grades.
        """
        limits: tuple[float, float] | None = getattr(self, "range", None)
        return limits or (0.0, 1.0)


class StringCheckGrader(GraderBase):
    """Grader that gives 1 if a string comparison holds, else 0."""

    TEMPLATE_FIELDS: ClassVar = ("input", "reference")

    type: Literal["string_check"]
    """Compares two strings exactly."""
    input: str
    """Template of the string to check, usually `{{ sample.output_text }}`."""
    reference: str
    """Template of the string to compare with, usually a field of the row such as `{{ item.reference_answer }}`."""
    operation: Literal["eq", "ne", "like", "ilike"]
    """Comparison: eq (equal), ne (not equal), like (the input contains the reference) or ilike (like, ignoring
    case)."""


class TextSimilarityGrader(GraderBase):
    """Grader that gives the similarity of two strings, from 0 to 1."""

    TEMPLATE_FIELDS: ClassVar = ("input", "reference")

    type: Literal["text_similarity"]
    """Compares two strings by their similarity."""
    input: str
    """Template of the string to grade, usually `{{ sample.output_text }}`. Only its first 50,000 characters count."""
    reference: str
    """Template of the string to compare with, such as `{{ item.reference_answer }}`. Two empty strings have similarity
    1; an empty and a non-empty string have similarity 0."""
    evaluation_metric: Similarity
    """Similarity metric. fuzzy_match: edit distance, as computed by rapidfuzz's ratio. bleu, gleu, rouge_1 to rouge_5
    and rouge_l: overlap of words. meteor: overlap of words and word stems, without synonyms. cosine: similarity of the
    embeddings from `model`."""
    model: str = "text-embedding"
    """Name of an embedding model in the operator's `models`; used by `cosine` only."""


class PythonGrader(GraderBase):
    """Grader that runs your Python code in a sandbox. The grade is the number that the code returns."""

    type: Literal["python"]
    """Runs your Python code in a sandbox."""
    source: str
    """Python source that defines `grade(sample, item)`, which returns a finite number or `{"score": number, "train":
    bool}`; at most 256,000 bytes. With `train` False, the rollout is not trained on. The standard library, numpy and a
    scratch folder are available; the network is not. `from agent_rft import run_untrusted` runs the model's code in a
    separate sandbox."""
    image_tag: str | None = None
    """Accepted for compatibility with OpenAI's API, and ignored: there is only one environment."""
    timeout_s: Annotated[float, Field(gt=0, le=120)] = 120.0
    """Maximum seconds per grade, not counting the wait for a free worker. If grading takes longer, it is stopped
    and the rollout is discarded."""
    range: Range | None = None
    """Lowest and highest allowed grade; null: any finite number. With any other grade, the rollout is discarded."""

    @field_validator("source")
    @classmethod
    def _check_length(cls, source: str) -> str:
        if len(source.encode()) > MAX_SOURCE_BYTES:
            raise ValueError(f"the source must not exceed {MAX_SOURCE_BYTES:,} bytes")
        return source


class JudgeGrader(GraderBase):
    """Base class of graders that ask a judge model."""

    model: str
    """Name of the judge in the operator's `models`. The judge is asked up to three times if its answer cannot be
    parsed."""
    input: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]
    """Messages for the judge, each with `role` and `content`; contents are templates. Equal requests are sent only
    once, and the answer is reused."""
    sampling_params: Annotated[dict[str, Any], Field(default_factory=dict)]
    """Parameters of the judge's request, such as `temperature`, `seed`, `top_p` or `max_completions_tokens`. If the
    judge's answers are cut off, raise `max_completions_tokens`."""


class ScoreModelGrader(JudgeGrader):
    """Grader that asks a judge model for a score and uses the score as the grade."""

    type: Literal["score_model"]
    """A judge model gives a score."""
    range: Range = (0.0, 1.0)
    """Lowest and highest score; scores outside this range are clipped."""


class LabelModelGrader(JudgeGrader):
    """Grader that gives 1 if the label chosen by a judge model is in `passing_labels`, else 0."""

    type: Literal["label_model"]
    """A judge model chooses a label."""
    labels: Annotated[tuple[str, ...], Field(min_length=1)]
    """Labels from which the judge must choose one."""
    passing_labels: Annotated[tuple[str, ...], Field(min_length=1)]
    """Labels that give 1; each must be one of `labels`."""


class EndpointGrader(GraderBase, Endpoint):
    """Grader that asks your own HTTP server for the score."""

    type: Literal["endpoint"]
    """Your own server gives a score."""
    url: str
    """URL that receives POST {sample, item, trace_id} and answers {score}, a finite number. If the answer also contains
    `"train": false`, the rollout is not trained on. A private address needs an entry in the operator's
    `allowed_networks`. No entry is needed if `allowed_networks` is not set and the command starts its own Ray cluster.
    For example, `agent-rft train` without `--address` starts its own Ray cluster."""
    hedge_after_s: Annotated[float, Field(gt=0)] | None = None
    """If a sample has no grade after this many seconds, the sample is sent again while the first request continues. The
    first answer wins. Set it somewhat above the usual latency to cut off rare slow answers, if grading a sample twice
    is harmless."""
    rate_limit_per_s: Annotated[float, Field(gt=0)] | None = Field(
        default=None, validation_alias=AliasChoices("rate_limit_per_s", "rate_limit")
    )
    """Maximum number of requests per second; null: no limit. OpenAI's name `rate_limit` is also accepted."""
    range: Range | None = None
    """Lowest and highest allowed score; null: any finite number. With any other score, the rollout is discarded."""


class CodeCheckGrader(GraderBase):
    """Grader that gives 1 if code is free of one known kind of reward hack, else 0; intended for guards.

    The checks detect simple forms of the hacks and miss clever ones: add a judge and a held-out grader.
    """

    TEMPLATE_FIELDS: ClassVar = ("code", "reference")

    type: Literal["code_check"]
    """Checks code for a known reward hack, without running it."""
    check: Literal["reference_returned", "trivial_output", "tests_edited", "result_hard_coded"]
    """Hack to detect. reference_returned: the code is the solution in `reference`, apart from names and comments.
    trivial_output: the code returns nothing or its unchanged input. result_hard_coded: the results are written into the
    code. tests_edited: the code changes files whose paths match `reference`, ends the process, or uses an object that
    equals everything."""
    code: str = "{{ sample.output_text }}"
    """Template of the code to check. The code is Python. For tests_edited, it may also be a patch, a shell command or
    `{{ sample.output_tools }}`, which contains all calls of the rollout."""
    reference: str = ""
    """Template of a text that the check uses in addition to `code`. For `reference_returned`: the solution (required).
    For `result_hard_coded`: the source code of the tests. For `tests_edited`: patterns of file names, such as
    `tests/*, conftest.py`."""


class LengthGrader(GraderBase):
    """Grader that gives 1 if a string is short enough, else 0; intended for guards."""

    TEMPLATE_FIELDS: ClassVar = ("input",)

    type: Literal["length"]
    """Checks the length of a string."""
    input: str = "{{ sample.output_text }}"
    """Template of the string to measure; by default the model's answer."""
    max_chars: PositiveInt
    """Maximum length of the string in characters; a longer string gives 0."""


SingleGrader = Annotated[
    StringCheckGrader
    | TextSimilarityGrader
    | PythonGrader
    | ScoreModelGrader
    | LabelModelGrader
    | EndpointGrader
    | CodeCheckGrader
    | LengthGrader,
    Field(discriminator="type"),
]


class MultiGrader(GraderBase):
    """Grader that evaluates an expression over the grades of several graders."""

    type: Literal["multi"]
    """Combines the grades of several graders."""
    graders: Annotated[dict[str, SingleGrader], Field(min_length=1)]
    """Graders by name, which run concurrently. A `multi` grader is not allowed here."""
    calculate_output: str
    """Expression over the names of `graders`, such as `0.8 * correct + 0.2 * style`. It may use + - * / ^,
    parentheses, min, max, abs, floor, ceil, exp, sqrt and log."""
    invalid_grade: float | None = None
    """Grade of a sample if a path in a grader's template, such as `sample.output_json.total`, does not exist, or if a
    `python` grader reads `sample["output_json"]` of an answer that is not JSON; null: the rollout is discarded. If a
    grader fails for any other reason, the rollout is always discarded."""

    @field_validator("graders", mode="before")
    @classmethod
    def _check_names(cls, graders: Any) -> Any:
        """Refuse a single grader. OpenAI's SDKs declare `graders` as one grader, but a mapping of names is required."""
        if isinstance(graders, dict) and isinstance(kind := graders.get("type"), str):
            name = graders.get("name")
            example = f"{{{name if isinstance(name, str) else kind:.100}: {{...}}}}"
            message = "is a single grader, but must be a mapping of names to graders, such as {example}"
            fix = "put the grader under a name in this mapping, and use the name in calculate_output"
            raise PydanticCustomError("value_error", message, {"example": example, "fix": fix})
        return graders


GraderSpec = Annotated[SingleGrader | MultiGrader, Field(discriminator="type")]


def limit_trial_grader(spec: GraderSpec) -> GraderSpec:
    """Return a copy of the grader for a trial call, with a shorter timeout for endpoints. Judges are not changed."""
    match spec:
        case EndpointGrader():
            return spec.limit_to_trial()
        case MultiGrader():
            return spec.model_copy(
                update={"graders": {k: limit_trial_grader(part) for k, part in spec.graders.items()}}
            )
        case StringCheckGrader() | TextSimilarityGrader() | CodeCheckGrader() | LengthGrader():
            return spec
        case PythonGrader() | ScoreModelGrader() | LabelModelGrader():
            return spec
    assert_never(spec)


class GuardSpec(StrictModel):
    """Guard against reward hacking. If the guard applies, it sets the reward, regardless of the grade."""

    name: str
    """Name of the guard, unique in the job; it is recorded with the rollout and in the metric `guard/<name>`."""
    grader: SingleGrader
    """Grader of the guard. The guard applies if this grader's grade is below its `pass_threshold`. If the grader fails,
    the rollout is discarded."""
    reward: float = 0.0
    """Reward of a rollout to which the guard applies. It replaces the grade, and no penalties are subtracted. 0 makes
    the detected behavior worthless; a negative number discourages it."""
