"""Settings of graders and guards: the grader types of OpenAI's fine-tuning API, and extensions of self-hosted jobs."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, Field, field_validator

from trainer.spec.endpoints import Endpoint, Positive, Strict

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


class GraderBase(Strict):
    """Base class of graders. A grade of at least `pass_threshold` counts as passed in pass rates, not in the reward."""

    TEMPLATES: ClassVar[tuple[str, ...]] = ()
    """The fields of the kind that are templates."""

    name: str | None = None
    pass_threshold: float = 1.0


class StringCheckGrader(GraderBase):
    """1 if the comparison holds, else 0. `like` and `ilike` test whether the input contains the reference."""

    TEMPLATES: ClassVar = ("input", "reference")

    type: Literal["string_check"]
    input: str
    reference: str
    operation: Literal["eq", "ne", "like", "ilike"]


class TextSimilarityGrader(GraderBase):
    """Similarity of two texts, from 0 to 1. `cosine` compares embeddings of the operator's endpoint named `model`."""

    TEMPLATES: ClassVar = ("input", "reference")

    type: Literal["text_similarity"]
    input: str
    reference: str
    evaluation_metric: Similarity
    model: str = "text-embedding"


class PythonGrader(GraderBase):
    """Python code that defines `grade(sample, item) -> float` and runs in a sandbox."""

    type: Literal["python"]
    source: str
    image_tag: str | None = None
    timeout_s: Annotated[float, Field(gt=0, le=120)] = 120.0

    @field_validator("source")
    @classmethod
    def _is_not_too_long(cls, source: str) -> str:
        if len(source.encode()) > MAX_SOURCE_BYTES:
            raise ValueError(f"the source must not exceed {MAX_SOURCE_BYTES:,} bytes")
        return source


class JudgeGrader(GraderBase):
    """Base class of graders that ask a judge model.

    `model` is the name of a model endpoint in the operator's configuration. Message contents in `input` are templates.
    """

    model: str
    input: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]
    sampling_params: Annotated[dict[str, Any], Field(default_factory=dict)]


class ScoreModelGrader(JudgeGrader):
    """A judge's score, clipped to `range`."""

    type: Literal["score_model"]
    range: tuple[float, float] = (0.0, 1.0)

    @field_validator("range")
    @classmethod
    def _rises(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not value[0] < value[1]:
            raise ValueError("the first number must be less than the second")
        return value


class LabelModelGrader(JudgeGrader):
    """1 if the judge's label is one of `passing_labels`, else 0."""

    type: Literal["label_model"]
    labels: Annotated[tuple[str, ...], Field(min_length=1)]
    passing_labels: Annotated[tuple[str, ...], Field(min_length=1)]


class EndpointGrader(GraderBase, Endpoint):
    """A grader behind HTTP: POST {sample, item, trace_id} to `url`, which responds with {score}.

    `rate_limit` is accepted for `rate_limit_per_s`, as in OpenAI's API. If there is no response after `hedge_after_s`,
    a second request is sent, so set it only if grading a sample twice is harmless.
    """

    type: Literal["endpoint"]
    url: str
    hedge_after_s: Annotated[float, Field(gt=0)] | None = None
    rate_limit_per_s: Annotated[float, Field(gt=0)] | None = Field(
        default=None, validation_alias=AliasChoices("rate_limit_per_s", "rate_limit")
    )


class CodeCheckGrader(GraderBase):
    """1 if the code is free of one known kind of reward hack, else 0. `code` and `reference` are templates."""

    TEMPLATES: ClassVar = ("code", "reference")

    type: Literal["code_check"]
    check: Literal["reference_returned", "trivial_output", "tests_edited", "result_hard_coded"]
    code: str = "{{ sample.output_text }}"
    reference: str = ""


class LengthGrader(GraderBase):
    """1 if a text has at most `max_chars` characters, else 0."""

    TEMPLATES: ClassVar = ("input",)

    type: Literal["length"]
    input: str = "{{ sample.output_text }}"
    max_chars: Positive


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
    """An expression over the grades of several graders.

    `invalid_grade` is the grade of a sample that one of the graders cannot read, because a path in its template does
    not exist. If a grader fails for another reason, there is no grade.
    """

    type: Literal["multi"]
    graders: Annotated[dict[str, SingleGrader], Field(min_length=1)]
    calculate_output: str
    invalid_grade: float | None = None


GraderSpec = Annotated[SingleGrader | MultiGrader, Field(discriminator="type")]


class GuardSpec(Strict):
    """A gate against reward hacking.

    If `grader` returns less than its `pass_threshold`, the reward is `reward` whatever the grade, and the guard's name
    is recorded.
    """

    name: str
    grader: SingleGrader
    reward: float = 0.0
