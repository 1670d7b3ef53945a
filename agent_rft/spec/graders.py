"""Settings of graders and guards: the grader types of OpenAI's fine-tuning API, and extensions of self-hosted jobs."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, assert_never

from pydantic import AfterValidator, AliasChoices, Field, field_validator

from agent_rft.spec.endpoints import Endpoint, Positive, Strict

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


def _rises(value: tuple[float, float]) -> tuple[float, float]:
    if not value[0] < value[1]:
        raise ValueError("the first number must be less than the second")
    return value


Range = Annotated[tuple[float, float], AfterValidator(_rises)]


class GraderBase(Strict):
    """Base class of graders. Texts that the settings call templates may contain `{{ item.x }}` and `{{ sample.x }}`."""

    TEMPLATES: ClassVar[tuple[str, ...]] = ()
    """The fields of the kind that are templates."""

    name: str | None = None
    """Name in messages; by default the type. In a `multi` grader the keys of `graders` are the names."""
    pass_threshold: float = 1.0
    """The least grade that counts as passed. For the job's grader it only matters for pass rates in metrics, never for
    rewards; for a guard's grader it decides whether the guard applies."""


class StringCheckGrader(GraderBase):
    """1 if the comparison holds, else 0."""

    TEMPLATES: ClassVar = ("input", "reference")

    type: Literal["string_check"]
    """Compares two texts exactly."""
    input: str
    """Template of the text to check, usually `{{ sample.output_text }}`."""
    reference: str
    """Template of the text to compare with, usually a key of the row such as `{{ item.reference_answer }}`."""
    operation: Literal["eq", "ne", "like", "ilike"]
    """eq: equal, ne: not equal, like: the input contains the reference, ilike: the same without regard to upper and
    lower case."""


class TextSimilarityGrader(GraderBase):
    """Similarity of two texts, from 0 to 1."""

    TEMPLATES: ClassVar = ("input", "reference")

    type: Literal["text_similarity"]
    """Compares two texts by their similarity."""
    input: str
    """Template of the text to grade, usually `{{ sample.output_text }}`. Only its first 50,000 characters count."""
    reference: str
    """Template of the text to compare with, such as `{{ item.reference_answer }}`. Two empty texts are equal (1); an
    empty and a non-empty one are not (0)."""
    evaluation_metric: Similarity
    """How similarity is measured: fuzzy_match (edit distance, rapidfuzz's ratio), bleu, gleu, meteor (words and stems,
    no synonyms), rouge_1 to rouge_5, rouge_l (overlap of words), or cosine (of embeddings by `model`)."""
    model: str = "text-embedding"
    """For `cosine` only: name of an embedding model in the operator's `models`."""


class PythonGrader(GraderBase):
    """The number that your Python code returns; it runs in a sandbox."""

    type: Literal["python"]
    """Runs your Python code in a sandbox."""
    source: str
    """Python source that defines `grade(sample, item)` and returns a finite number, at most 256,000 bytes. It has the
    standard library and numpy, a scratch folder, and no network. `from agent_rft import run_untrusted` runs code
    of the model in a sandbox of its own."""
    image_tag: str | None = None
    """Accepted because OpenAI's API has it, and ignored: there is one environment."""
    timeout_s: Annotated[float, Field(gt=0, le=120)] = 120.0
    """Seconds that one grade may take, without the wait for a free worker. A grade that takes longer is killed and
    counts as a failure, so the rollout is discarded."""
    range: Range | None = None
    """Lowest and highest grade; a grade outside is a failure, so the rollout is discarded. null: any finite number."""

    @field_validator("source")
    @classmethod
    def _is_not_too_long(cls, source: str) -> str:
        if len(source.encode()) > MAX_SOURCE_BYTES:
            raise ValueError(f"the source must not exceed {MAX_SOURCE_BYTES:,} bytes")
        return source


class JudgeGrader(GraderBase):
    """Base class of graders that ask a judge model."""

    model: str
    """Name of the judge in the operator's `models`. It is asked up to three times if its answer cannot be parsed."""
    input: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]
    """Messages for the judge, each with `role` and `content`; contents are templates. Equal questions are asked once
    and the answer is reused."""
    sampling_params: Annotated[dict[str, Any], Field(default_factory=dict)]
    """Parameters of the judge's request, such as `temperature`, `seed`, `top_p` or `max_completions_tokens`. Raise the
    last one if the judge's answers are cut off."""


class ScoreModelGrader(JudgeGrader):
    """The score that a judge model gives."""

    type: Literal["score_model"]
    """A judge model gives a score."""
    range: Range = (0.0, 1.0)
    """Lowest and highest score; a score outside is clipped to it."""


class LabelModelGrader(JudgeGrader):
    """1 if the judge's label is one of `passing_labels`, else 0."""

    type: Literal["label_model"]
    """A judge model chooses a label."""
    labels: Annotated[tuple[str, ...], Field(min_length=1)]
    """The labels from which the judge must choose one."""
    passing_labels: Annotated[tuple[str, ...], Field(min_length=1)]
    """The labels that give 1; each must be one of `labels`."""


class EndpointGrader(GraderBase, Endpoint):
    """The score that your own server gives, by HTTP."""

    type: Literal["endpoint"]
    """Your own server grades."""
    url: str
    """URL that receives POST {sample, item, trace_id} and answers {score}, a finite number. Private addresses need an
    entry in the operator's `allowed_networks`, unless the command starts its own Ray cluster."""
    hedge_after_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds without an answer after which the sample is sent again while the first request is still in flight; the
    first answer wins. Set it to cut off rare slow answers, if grading a sample twice does no harm."""
    rate_limit_per_s: Annotated[float, Field(gt=0)] | None = Field(
        default=None, validation_alias=AliasChoices("rate_limit_per_s", "rate_limit")
    )
    """Most requests per second; null: no limit. `rate_limit`, OpenAI's name, is accepted too."""
    range: Range | None = None
    """Lowest and highest score; a score outside is a failure, so the rollout is discarded. null: any finite number."""


class CodeCheckGrader(GraderBase):
    """1 if the code is free of one known kind of reward hack, else 0; made for guards.

    The checks find the simple forms of the hacks and miss clever ones: add a judge and a held-out grader.
    """

    TEMPLATES: ClassVar = ("code", "reference")

    type: Literal["code_check"]
    """Looks for a known reward hack in code, without running it."""
    check: Literal["reference_returned", "trivial_output", "tests_edited", "result_hard_coded"]
    """The hack: reference_returned (the solution in `reference`, apart from names and comments), trivial_output (no
    result, or the input unchanged), result_hard_coded (results written into the code), tests_edited (changes files that
    match `reference`, or code that ends the process or equals everything)."""
    code: str = "{{ sample.output_text }}"
    """Template of what to check: Python code, or for tests_edited also a patch, a shell command or `{{
    sample.output_tools }}`, all calls of the rollout."""
    reference: str = ""
    """Template of what the check compares with: the solution (required by reference_returned), the tests' source
    (result_hard_coded), or patterns of file names such as `tests/*, conftest.py` (tests_edited)."""


class LengthGrader(GraderBase):
    """1 if a text is not too long, else 0; made for guards."""

    TEMPLATES: ClassVar = ("input",)

    type: Literal["length"]
    """Checks the length of a text."""
    input: str = "{{ sample.output_text }}"
    """Template of the text, by default the model's answer."""
    max_chars: Positive
    """Most characters that give 1; a longer text gives 0."""


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
    """An expression over the grades of several graders."""

    type: Literal["multi"]
    """Combines the grades of several graders."""
    graders: Annotated[dict[str, SingleGrader], Field(min_length=1)]
    """The parts by name, run at the same time; a part cannot be a `multi` grader itself."""
    calculate_output: str
    """Expression over the names of `graders`, such as `0.8 * correct + 0.2 * style`: + - * / ^, parentheses, min, max,
    abs, floor, ceil, exp, sqrt, log."""
    invalid_grade: float | None = None
    """Grade of a sample that one of the parts cannot read, because a path of its template, such as
    `sample.output_json.total`, does not exist; null: such a rollout is discarded. Any other failure of a part gives no
    grade."""


GraderSpec = Annotated[SingleGrader | MultiGrader, Field(discriminator="type")]


def grader_for_trial(spec: GraderSpec) -> GraderSpec:
    """Return the grader with endpoints that have the deadline of a trial call; judges are the operator's."""
    match spec:
        case EndpointGrader():
            return spec.for_trial()
        case MultiGrader():
            return spec.model_copy(update={"graders": {k: grader_for_trial(part) for k, part in spec.graders.items()}})
        case StringCheckGrader() | TextSimilarityGrader() | CodeCheckGrader() | LengthGrader():
            return spec
        case PythonGrader() | ScoreModelGrader() | LabelModelGrader():
            return spec
    assert_never(spec)


class GuardSpec(Strict):
    """A gate against reward hacking: behaviour whose reward does not depend on the grade."""

    name: str
    """Name of the guard, unique in the job; it is recorded with the rollout and in the metric `guard/<name>`."""
    grader: SingleGrader
    """The check: the guard applies if its grade is below its `pass_threshold`. If it fails for another reason, the
    rollout is discarded."""
    reward: float = 0.0
    """Reward of a rollout to which the guard applies, in place of the grade and without penalties. 0 makes the hack
    worthless, a negative number discourages it."""
