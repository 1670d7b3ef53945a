"""Jobs of a stand-in of OpenAI's API become folders that the reader of job files and the form checks accept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml

from agent_rft.cli.openai_import.export_source import FolderSource
from agent_rft.cli.openai_import.import_folder import import_job
from agent_rft.cluster.checks.row_checks import read_files
from agent_rft.errors import InvalidJob, RftError, UserError
from agent_rft.serve.jobs.job_request import parse_api_job
from agent_rft.spec.config_reader import Variables
from agent_rft.spec.job_file import load_job
from agent_rft.spec.operator.operator_config import OperatorConfig
from tests.support.imports import checked, environment_of, imported, run
from tests.support.openai_api import KEY, FakeOpenAI
from tests.support.openai_jobs import (
    ENDPOINT,
    EXACT,
    GRADERS,
    JOB_ID,
    PYTHON,
    ROW,
    TALK,
    lines,
    preferences,
    record,
    recorded,
    reinforcement,
    supervised,
)
from tests.unit.serve.jobs.test_job_request import KnownFiles, KnownModels

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


# -- what is written ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(GRADERS))
def test_a_job_of_each_kind_of_grader_becomes_a_folder_that_the_checks_accept(
    kind: str, api: FakeOpenAI, tmp_path: Path
) -> None:
    said = imported(api, tmp_path, recorded(reinforcement(GRADERS[kind])))
    job = checked(tmp_path / "moved")

    hyperparameters, rl = job.reinforcement.hyperparameters, job.reinforcement
    assert rl.grader.type == kind.split()[0].replace("cosine", "text_similarity")
    assert (job.model, job.seed, job.suffix, rl.max_episode_steps) == ("Qwen/Qwen3-4B", 7, "shop", 10)
    assert (hyperparameters.batch_size, hyperparameters.n_epochs, hyperparameters.eval_samples) == (8, 2, 2)
    assert hyperparameters.learning_rate_multiplier == "auto"
    assert "learning_rate_multiplier: changed from 2" in said and "up to 512 reasoning tokens" in said
    assert [tool.name for tool in rl.tools] == ["search"]
    assert said == (tmp_path / "moved" / "README.md").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["moved"]
    (header,) = rl.tools[0].headers.values()
    assert header.get_secret_value() == "secret", "the API shows the names of headers only"
    names = {"README.md", "agent-rft.yaml", "imported.json", "job.yaml", "train.jsonl", "validation.jsonl"}
    assert {path.name for path in (tmp_path / "moved").iterdir()} == names


@pytest.mark.parametrize("method", [supervised(), None])
def test_a_supervised_job_is_imported_also_in_its_older_form(
    method: dict[str, Any] | None, api: FakeOpenAI, tmp_path: Path
) -> None:
    old = {"batch_size": 4, "n_epochs": 3, "learning_rate_multiplier": 1.8}
    job = recorded(method, model="gpt-4.1-nano-2025-04-14", hyperparameters=old)
    row = {"messages": [*TALK["messages"], {"role": "assistant", "content": "or 43", "weight": 0}]}
    said = imported(api, tmp_path, job, row)

    spec = checked(tmp_path / "moved")
    assert (spec.model, spec.supervised.hyperparameters.batch_size) == ("Qwen/Qwen3-1.7B", 4)
    assert "weight" not in said, "messages of weight 0 are not trained, as at OpenAI"
    assert "agent-rft check" in said and "agent-rft eval" not in said, "it needs a grader"


def test_what_was_there_is_kept_to_compare_with_page_after_page(api: FakeOpenAI, tmp_path: Path) -> None:
    imported(api, tmp_path, recorded(reinforcement()))

    there = json.loads((tmp_path / "moved" / "imported.json").read_text())
    assert [entry["step_number"] for entry in there["checkpoints"]] == list(range(1, 121))
    assert there["checkpoints"][0]["metrics"]["full_valid_mean_reward"] == 0.6
    assert [entry["message"] for entry in there["events"]] == [f"Step {n}/250" for n in range(250, 0, -1)]
    assert there["job"]["metadata"] == {"team": "search"} and there["job"]["trained_tokens"] == 123_456


def test_a_text_of_the_job_stays_as_it_is_even_if_it_looks_like_a_variable(api: FakeOpenAI, tmp_path: Path) -> None:
    imported(api, tmp_path, recorded(reinforcement(GRADERS["python"])))

    spec = load_job(tmp_path / "moved" / "job.yaml", environment_of(tmp_path / "moved") | {"HOME": "/root"})
    assert spec.reinforcement.grader.type == "python" and spec.reinforcement.grader.source == PYTHON
    assert "export DOLLAR='$'" in (tmp_path / "moved" / "README.md").read_text()


def test_judges_stay_at_openai_until_the_operator_names_others(api: FakeOpenAI, tmp_path: Path) -> None:
    said = imported(api, tmp_path, recorded(reinforcement(GRADERS["score_model"])))

    operator = yaml.safe_load((tmp_path / "moved" / "agent-rft.yaml").read_text())
    judge = {"base_url": "https://api.openai.com/v1", "api_key": "${OPENAI_API_KEY}"}
    assert operator["models"] == {"gpt-4o-2024-08-06": judge}
    assert operator["aliases"] == dict.fromkeys(("o4-mini", "Qwen/Qwen3-4B"), "Qwen/Qwen3-4B")
    assert "the judge 'gpt-4o-2024-08-06' still runs at OpenAI" in said


def test_an_address_to_allow_is_named_once_with_all_that_call_it(api: FakeOpenAI, tmp_path: Path) -> None:
    tools = [{"name": name, "server_url": f"http://10.0.0.1:8000/{name}"} for name in ("search", "read")]
    said = imported(api, tmp_path, recorded(reinforcement(tools=tools)))

    (line,) = [line for line in said.splitlines() if "allowed_networks" in line]
    assert "- tools[0].server_url, tools[1].server_url: its" in line and "add 10.0.0.1:8000 " in line


def test_a_model_in_a_folder_is_not_downloaded(api: FakeOpenAI, tmp_path: Path) -> None:
    record(api, recorded(reinforcement()))
    said = run(api, tmp_path, model=str(tmp_path / "model"))

    assert "hf download" not in said and f"model: {tmp_path / 'model'}\n" in (tmp_path / "moved/job.yaml").read_text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"status": "running"}, "has not ended at OpenAI (running)"),
        ({"status": "cancelled"}, "the job's status at OpenAI is cancelled"),
        (
            {"status": "failed", "error": {"code": "bad", "message": "no\x1b[31m rows", "param": None}},
            "bad: no [31m rows",
        ),
        ({"model": "ft:gpt-4.1-2025-04-14:acme::x"}, "was tuned at OpenAI, and its weights cannot be downloaded"),
        (
            {"integrations": [{"type": "wandb", "wandb": {"project": "p", "run_id": "r"}}]},
            "wandb was imported; set track",
        ),
        ({"integrations": [{"type": "new"}]}, "a tracker was omitted, because the import supports only wandb"),
        ({"seed": 2**31 + 3}, " to 3, because"),
        ({"method": reinforcement(new_setting=1)}, "method.reinforcement.new_setting: omitted"),
        (
            {"method": reinforcement(GRADERS["string_check"].model_dump() | {"strictness": 2})},
            "grader.strictness: omitted",
        ),
        (
            {"method": reinforcement(tools=[{"name": "search", "server_url": "http://a.com", "team": "x"}])},
            "omitted team",
        ),
        ({"method": reinforcement({"type": "endpoint", "url": "http://a.com"})}, "grader: headers are missing"),
        ({"method": reinforcement(signing_secret="*")}, "signing_secret: omitted"),
        (
            {"method": reinforcement({"type": "endpoint", "url": "http://10.0.0.1/g"})},
            "grader.url: its URL points to 10.0.0.1, a private address; for `agent-rft serve` and shared "
            "clusters, add 10.0.0.1:80 to allowed_networks",
        ),
        (
            {
                "method": reinforcement(
                    {"type": "python", "source": "import pandas, os\ndef grade(sample, item): return 1"}
                )
            },
            "imports pandas, which the sandbox does not contain; install the package pandas",
        ),
    ],
)
def test_what_differs_is_named(change: dict[str, Any], said: str, api: FakeOpenAI, tmp_path: Path) -> None:
    assert said in imported(api, tmp_path, recorded(reinforcement()) | change)


def test_texts_in_parts_are_joined_and_a_long_row_gets_room(api: FakeOpenAI, tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "What?"}, {"type": "input_text", "text": "é " * 40_000}]
    said = imported(api, tmp_path, recorded(reinforcement()), ROW | {"messages": [{"role": "user", "content": parts}]})

    job = checked(tmp_path / "moved")
    rows, _ = read_files(job)
    assert rows["training_file"][0].messages[0]["content"] == "What?\n" + "é " * 40_000
    assert "were joined into one string in 12 rows" in said
    assert isinstance(job.cluster.context_length, int) and 30_000 < job.cluster.context_length <= 40_960


def test_rows_of_evaluations_are_kept_and_read_as_their_items(api: FakeOpenAI, tmp_path: Path) -> None:
    imported(api, tmp_path, recorded(reinforcement()), {"item": ROW})
    rows, _ = read_files(checked(tmp_path / "moved"))
    assert rows["training_file"][0].item == ROW
    assert json.loads((tmp_path / "moved" / "train.jsonl").read_text().splitlines()[0]) == {"item": ROW}
    (tmp_path / "other").mkdir()
    bad = {"item": ROW | {"messages": [{"role": "user", "content": [IMAGE]}]}}
    with pytest.raises(InvalidJob) as refused:
        imported(api, tmp_path / "other", recorded(reinforcement()), bad)
    assert {problem.code for problem in refused.value.problems} == {"unsupported_row"}


def test_developer_messages_are_kept_and_noted_once(api: FakeOpenAI, tmp_path: Path) -> None:
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "What?"}]
    said = imported(api, tmp_path, recorded(reinforcement()), ROW | {"messages": messages})
    rows, _ = read_files(checked(tmp_path / "moved"))
    assert list(rows["training_file"][0].messages) == messages
    assert said.count("developer messages") == 1 and "become system messages in training and in serving" in said
    (tmp_path / "other").mkdir()
    assert "developer messages" not in imported(api, tmp_path / "other", recorded(reinforcement()))


def test_the_job_file_is_a_request_of_the_api_too(api: FakeOpenAI, tmp_path: Path) -> None:
    imported(api, tmp_path, recorded(reinforcement(GRADERS["multi"])))
    variables = Variables(environment_of(tmp_path / "moved"))
    body = variables.fill_in(yaml.safe_load((tmp_path / "moved" / "job.yaml").read_text()), ())
    files = {"training_file": "file-1", "validation_file": "file-1"}

    made = parse_api_job(body | files | {"model": "gpt-5"}, KnownModels(), KnownFiles(), OperatorConfig())
    assert made.spec.reinforcement.grader.type == "multi"


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "row", "code", "said"),
    [
        (recorded(preferences()), ROW, "unsupported_method", "'dpo'"),
        (recorded({"type": "grpo"}), ROW, "unsupported_method", "'grpo'"),
        (recorded(reinforcement({"type": "image_match"})), ROW, "invalid_union_tag_invalid", "image_match"),
        (
            recorded(reinforcement(EXACT.model_dump() | {"operation": "regex"})),
            ROW,
            "invalid_literal_error",
            "operation",
        ),
        (recorded(reinforcement(EXACT.model_dump() | {"input": "{{ row.x }}"})), ROW, "invalid_template", "row.x"),
        (
            recorded(reinforcement(tools=[{"name": "a", "server_url": "ftp://a.com", "headers": {}}])),
            ROW,
            "invalid_endpoint",
            "must start with http",
        ),
        (
            recorded(reinforcement()),
            ROW | {"messages": [{"role": "user", "content": [IMAGE]}]},
            "unsupported_row",
            "image_url",
        ),
        (recorded(reinforcement()), ROW | {"functions": [{"name": "f"}]}, "unsupported_row", "functions"),
        (recorded(reinforcement()), TALK, "invalid_row", "has the role assistant"),
    ],
)
def test_what_is_not_here_is_named_and_nothing_is_left(
    job: dict[str, Any], row: Any, code: str, said: str, api: FakeOpenAI, tmp_path: Path
) -> None:
    with pytest.raises(InvalidJob) as error:
        imported(api, tmp_path, job, row)

    assert code in {problem.code for problem in error.value.problems} and said in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has no rows"),
        (b'{"messages": [\n', "file-train:1): is not valid JSON"),
        (lines(ROW) + b"\xff\n", "file-train:2): is not UTF-8"),
        (lines(ROW, [1]), "file-train:2): must be a JSON object"),
        (b"[" * 100_000 + b"\n", "is not valid JSON"),
    ],
)
def test_bad_rows_are_named_with_their_line(content: bytes, said: str, api: FakeOpenAI, tmp_path: Path) -> None:
    record(api, recorded(reinforcement()))
    api.files["file-train"] = content
    with pytest.raises(InvalidJob) as error:
        run(api, tmp_path)

    assert said in str(error.value) and "--training-file" in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_gone_is_replaced_by_ones_own_copy(api: FakeOpenAI, tmp_path: Path) -> None:
    record(api, recorded(reinforcement()))
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(b"\xef\xbb\xbf" + api.files.pop("file-train"))
    with pytest.raises(
        InvalidJob, match=r"file-train was deleted or has expired \[file_deleted\]\n.*--training-file FILE"
    ):
        run(api, tmp_path)

    run(api, tmp_path, {"training_file": copy})
    checked(tmp_path / "moved")


def test_a_folder_that_exists_is_left_alone(api: FakeOpenAI, tmp_path: Path) -> None:
    (tmp_path / "moved").mkdir()
    with pytest.raises(UserError, match="give a new folder with --out"):
        imported(api, tmp_path, recorded(reinforcement()))

    assert not api.asked and not list((tmp_path / "moved").iterdir())


# -- exports -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["multi", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("score_model", "endpoint"))]
)
def test_an_export_of_the_sdk_gives_the_same_as_the_api(kind: str, api: FakeOpenAI, tmp_path: Path) -> None:
    imported(api, tmp_path, recorded(reinforcement(GRADERS[kind])))
    export = tmp_path / "export"
    export.mkdir()
    client = openai.OpenAI(api_key=KEY, base_url=api.url)
    jobs = client.fine_tuning.jobs
    job = jobs.retrieve(JOB_ID)
    (export / "job.json").write_text(job.model_dump_json(warnings=False))
    for name, found in (("events", jobs.list_events(JOB_ID)), ("checkpoints", jobs.checkpoints.list(JOB_ID))):
        (export / f"{name}.jsonl").write_text("".join(f"{entry.model_dump_json()}\n" for entry in found))
    for name, file in (("train", job.training_file), ("validation", job.validation_file)):
        client.files.content(file or "").write_to_file(export / f"{name}.jsonl")
    client.close()
    import_job(FolderSource(export), tmp_path / "again", {}, None)

    for path in (tmp_path / "moved").iterdir():
        there = path.read_text().replace("cd " + str(tmp_path / "moved"), "cd " + str(tmp_path / "again"))
        assert parsed(path.name, (tmp_path / "again" / path.name).read_text()) == parsed(path.name, there)


def parsed(name: str, text: str) -> Any:
    """The content of a file, whatever the order of its keys."""
    return yaml.safe_load(text) if name.endswith((".yaml", ".json")) else text


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "job.json cannot be read"),
        ({"job.json": "{"}, "does not match OpenAI's API, because it is not valid JSON: Expecting property name"),
        ({"job.json": "[" + "[]," * 100_000 + "0]"}, "it has more than 100,000 values"),
        ({"job.json": json.dumps(recorded(reinforcement()))}, "train.jsonl is not in the export folder"),
        (
            {
                "job.json": json.dumps(recorded(supervised())),
                "train.jsonl": lines(TALK),
                "validation.jsonl": lines(TALK),
                "events.jsonl": "[]",
            },
            "events.jsonl, entry 1 does not match",
        ),
    ],
)
def test_an_incomplete_export_is_named(files: dict[str, str | bytes], said: str, tmp_path: Path) -> None:
    export = tmp_path / "export"
    export.mkdir()
    for name, text in files.items():
        (export / name).write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(RftError, match=said):
        import_job(FolderSource(export), tmp_path / "moved", {}, None)

    assert [path.name for path in tmp_path.iterdir()] == ["export"]


# -- secrets -----------------------------------------------------------------------------------------------------------

SECRETS = ["Bearer s3cret-of-a-tool", "s3cret-of-a-grader", "s3cret-user", "s3cret-password", "s3cret-in-query", KEY]


def test_no_secret_is_in_any_written_file(api: FakeOpenAI, tmp_path: Path) -> None:
    tool, grader, user, password, query, _ = SECRETS
    url = f"https://{user}:{password}@tools.example.com:8443/search?token={query}&x=1"
    tools = [{"name": "search", "server_url": url, "headers": {"X-Key": tool}, "api_key": grader}]
    parts = {"a": ENDPOINT | {"headers": {"Authorization": grader}, "url": url.replace(f"{user}:{password}@", "")}}
    method = reinforcement(
        {"type": "multi", "graders": parts, "calculate_output": "a"},
        tools=tools,
        signing_secret=password,
        session={"start_url": url, "headers": {"X-Key": tool}},
        held_out_grader=parts["a"],
        guards=[{"name": "g", "grader": parts["a"]}],
    )
    said = imported(api, tmp_path, recorded(method))

    written = said + "".join(path.read_text() for path in (tmp_path / "moved").iterdir())
    assert not [secret for secret in SECRETS if secret in written]
    environment = dict.fromkeys(environment_of(tmp_path / "moved"), "filled")
    job = load_job(tmp_path / "moved" / "job.yaml", environment)
    assert (
        job.reinforcement.tools[0].server_url
        == "https://filled:filled@tools.example.com:8443/search?token=filled&x=filled"
    )
    assert job.reinforcement.tools[0].headers["X-Key"].get_secret_value() == "filled"


def test_variables_have_a_prefix_so_that_a_job_cannot_name_one_that_is_there(api: FakeOpenAI, tmp_path: Path) -> None:
    tools = [{"name": "search", "server_url": "https://aws.secret/x", "headers": {"Access-Key": ""}}]
    imported(api, tmp_path, recorded(reinforcement(tools=tools)))

    assert "${KEY_AWS_SECRET_ACCESS_KEY}" in (tmp_path / "moved" / "job.yaml").read_text()
