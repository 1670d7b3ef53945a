"""Jobs through the official SDK and by hand, and bad requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from agent_rft.serve.jobs.job_logs import JobLogs
from agent_rft.serve.routes.job_routes import make_router
from agent_rft.serve.stores.job_tables import JobError
from agent_rft.spec.operator.operator_config import ModelEndpoint, OperatorConfig
from tests.support.api import body_of, client_of, openai_of
from tests.support.bad_requests import SECRET, Bad, check_refused
from tests.support.builders import EXACT
from tests.support.jobs import BODY, TOOL, FolderJobs, fixture_of, job_service

JOBS = "/v1/fine_tuning/jobs"
REINFORCEMENT = BODY["method"]["reinforcement"]


class JobServer(FolderJobs):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        operator = OperatorConfig(models={"judge": ModelEndpoint(base_url="https://judge.example/v1")})
        self.woken = 0
        self.logs = JobLogs(folder)
        self.http = client_of([make_router(job_service(self.store, operator, self._wake, self.logs))])
        self.sdk = openai_of(self.http)

    def _wake(self) -> None:
        self.woken += 1

    def running(self, job_id: str) -> None:
        self.store.move(job_id, "queued")
        assert self.store.claim_next("m", 100, 10) is not None
        assert self.store.next_attempt(job_id, 0, f"{job_id}-1", failures=0)

    async def create(self, headers: dict[str, str] | None = None, **changes: Any) -> dict[str, Any]:
        return body_of(await self.http.post(JOBS, json=BODY | changes, headers=headers))


server = fixture_of(JobServer)


# -- the official SDK --------------------------------------------------------------------------------------------------


async def test_the_sdk_creates_a_job_and_reads_it_back(server: JobServer) -> None:
    job = await server.sdk.fine_tuning.jobs.create(**BODY, suffix="x", seed=4, metadata={"team": "a"})  # type: ignore[arg-type]
    assert (job.object, job.status, job.model, job.seed) == ("fine_tuning.job", "validating_files", "gpt-5", 4)
    assert job.hyperparameters.n_epochs == "auto" and job.metadata == {"team": "a"}
    assert job.method is not None and job.method.type == "reinforcement"
    again = await server.sdk.fine_tuning.jobs.retrieve(job.id)
    assert again == job and server.woken == 1
    assert [found.id async for found in server.sdk.fine_tuning.jobs.list()] == [job.id]


async def test_a_job_says_how_far_it_is_if_it_is_asked_for(server: JobServer) -> None:
    job = (await server.create())["id"]
    data = {"step": 2, "total_steps": 9, "train_mean_reward": 0.5}
    server.store.add_event(job, "info", "Step 2/9", type="metrics", data=data)
    whole = await server.http.get(JOBS, params={"include": "progress"})
    [one] = whole.json()["data"]
    assert one == (await server.http.get(f"{JOBS}/{job}", params={"include": "progress"})).json()
    assert (one["progress"]["step"], one["progress"]["total_steps"], one["progress"]["train"]) == (2, 9, 0.5)
    assert (await server.http.get(f"{JOBS}/{job}")).json()["progress"] is None
    assert (await server.http.get(JOBS, params={"include": "all"})).status_code == 400


async def test_model_options_are_an_extension_that_is_echoed_as_it_was_sent(server: JobServer) -> None:
    options = {
        "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
        "template_arguments": {"enable_thinking": False, "date": None},
        "stop_tokens": ["<|eom_id|>"],
    }
    job = await server.sdk.fine_tuning.jobs.create(**BODY, extra_body={"model_options": options})  # type: ignore[arg-type]
    assert job.to_dict()["model_options"] == options
    assert (await server.sdk.fine_tuning.jobs.retrieve(job.id)).to_dict()["model_options"] == options
    assert (await server.create(seed=1))["model_options"] is None


async def test_integrations_are_kept_and_an_unknown_type_is_refused_with_those_that_there_are(
    server: JobServer,
) -> None:
    wandb = {"project": "agents", "entity": None, "tags": ["a"]}
    given: Any = [{"type": "wandb", "wandb": wandb}, {"type": "mlflow", "mlflow": None}]
    job = await server.sdk.fine_tuning.jobs.create(**BODY, integrations=given)  # type: ignore[arg-type]
    assert job.integrations is not None
    assert (job.integrations[0].wandb.project, job.integrations[0].wandb.tags) == ("agents", ["a"])
    again = await server.sdk.fine_tuning.jobs.retrieve(job.id)
    assert again.to_dict()["integrations"] == job.to_dict()["integrations"]
    assert (await server.create(seed=1))["integrations"] == []
    with pytest.raises(openai.BadRequestError, match="'wandb', 'mlflow', 'tensorboard'"):
        await server.sdk.fine_tuning.jobs.create(**BODY, integrations=[{"type": "comet"}])  # type: ignore[arg-type, list-item, typeddict-item]


async def test_the_sdk_lists_events_and_checkpoints_over_all_pages(server: JobServer) -> None:
    job = await server.sdk.fine_tuning.jobs.create(**BODY)  # type: ignore[arg-type]
    for step in range(1, 31):
        server.store.add_event(job.id, "info", f"Step {step}/30", type="metrics", data={"step": step})
        server.store.add_checkpoint(job.id, step, f"ft:a:ckpt-step-{step}", {"step": float(step)})
    events = [event async for event in server.sdk.fine_tuning.jobs.list_events(job.id, limit=7)]
    assert [event.message for event in events][:2] == ["Step 30/30", "Step 29/30"] and len(events) == 31
    assert events[0].type == "metrics" and events[0].data == {"step": 30}
    checkpoints = [c async for c in server.sdk.fine_tuning.jobs.checkpoints.list(job.id)]
    assert [c.step_number for c in checkpoints] == list(range(30, 0, -1))
    assert checkpoints[0].fine_tuned_model_checkpoint == "ft:a:ckpt-step-30"


async def test_a_job_is_paused_resumed_and_cancelled(server: JobServer) -> None:
    job = await server.sdk.fine_tuning.jobs.create(**BODY)  # type: ignore[arg-type]
    with pytest.raises(openai.BadRequestError, match="is validating_files and cannot become paused"):
        await server.sdk.fine_tuning.jobs.pause(job.id)
    server.running(job.id)
    assert (await server.sdk.fine_tuning.jobs.pause(job.id)).status == "paused"
    assert (await server.sdk.fine_tuning.jobs.resume(job.id)).status == "queued"
    cancelled = await server.sdk.fine_tuning.jobs.cancel(job.id)
    assert cancelled.status == "cancelled" and cancelled.finished_at == int(server.now)
    with pytest.raises(openai.BadRequestError, match="is a final state"):
        await server.sdk.fine_tuning.jobs.resume(job.id)


async def test_a_failed_job_has_an_error_that_says_why(server: JobServer) -> None:
    job = await server.sdk.fine_tuning.jobs.create(**BODY)  # type: ignore[arg-type]
    server.store.move(
        job.id, "failed", error=JobError("invalid_training_file", "line 3: is not valid JSON", "training_file")
    )
    error = (await server.sdk.fine_tuning.jobs.retrieve(job.id)).error
    assert error is not None and (error.code, error.param) == ("invalid_training_file", "training_file")


# -- the log, for admins -----------------------------------------------------------------------------------------------


async def test_an_admin_reads_the_whole_error_and_the_outputs_without_the_jobs_secrets(server: JobServer) -> None:
    job_id = (await server.create())["id"]
    error = JobError("internal_error", "a bug", log=f"ValueError: {SECRET}")
    server.store.move(job_id, "failed", error=error)
    for attempt in (0, 1):
        server.logs.add(job_id, attempt, f"Traceback {attempt} {SECRET}")
    log = (await server.http.get(f"{JOBS}/{job_id}/log")).json()
    texts = [(output["process"], output["attempt"], output["text"]) for output in log["outputs"]]
    assert log["error"] == "ValueError: [redacted]"
    assert texts == [("validation", 0, "Traceback 0 [redacted]\n"), ("driver", 1, "Traceback 1 [redacted]\n")]
    one = (await server.http.get(f"{JOBS}/{job_id}/log?attempt=1")).json()
    assert one["outputs"] == log["outputs"][1:]
    told = (await server.http.get(f"{JOBS}/{job_id}")).json()["error"]
    assert told == {"code": "internal_error", "message": "a bug", "param": None}


@pytest.mark.parametrize("token", ["sk-rft-read", "sk-rft-write"])
async def test_others_do_not_read_the_log_not_even_of_their_own_jobs(server: JobServer, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    job_id = (await server.create())["id"]
    answer = await server.http.get(f"{JOBS}/{job_id}/log", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_scope")


# -- shapes ------------------------------------------------------------------------------------------------------------


async def test_a_job_has_every_key(server: JobServer) -> None:
    job = await server.create()
    assert set(job) >= {
        "id", "object", "created_at", "finished_at", "model", "fine_tuned_model", "status", "error", "hyperparameters",
        "method", "training_file", "validation_file", "result_files", "trained_tokens", "seed", "organization_id",
        "metadata", "estimated_finish", "integrations",
    }  # fmt: skip
    assert job["id"].startswith("ftjob-") and job["result_files"] == [] and job["error"] is None


async def test_secrets_are_in_no_answer_and_not_in_plain_text_in_the_database(
    server: JobServer,
) -> None:
    job = await server.create()
    listed = (await server.http.get(JOBS)).text + (await server.http.get(f"{JOBS}/{job['id']}/events")).text
    assert SECRET not in json.dumps(job) + listed
    server.database.close()
    assert SECRET.encode() not in (server.folder / "state.db").read_bytes()


async def test_jobs_are_found_by_metadata(server: JobServer) -> None:
    one = await server.create(metadata={"team": "a"})
    await server.create(metadata={"team": "b"})
    found = (await server.http.get(JOBS, params={"metadata[team]": "a"})).json()
    assert [job["id"] for job in found["data"]] == [one["id"]] and not found["has_more"]


# -- retries -----------------------------------------------------------------------------------------------------------


async def test_a_request_that_the_sdk_retries_creates_no_second_job(server: JobServer) -> None:
    first = await server.create({"x-stainless-retry-count": "0"})
    server.now += 300
    again = await server.create({"x-stainless-retry-count": "1"})
    assert again["id"] == first["id"]
    other = await server.create({"x-stainless-retry-count": "0"})
    assert other["id"] != first["id"], "the same job twice on purpose"


async def test_a_client_that_does_not_count_its_retries_has_a_short_window(server: JobServer) -> None:
    first = await server.create()
    server.now += 5
    assert (await server.create())["id"] == first["id"]
    server.now += 11
    assert (await server.create())["id"] != first["id"]


async def test_an_idempotency_key_creates_one_job(server: JobServer) -> None:
    first = await server.create({"Idempotency-Key": "k"})
    server.now += 1e6
    assert (await server.create({"Idempotency-Key": "k"}))["id"] == first["id"]
    await check_refused(
        Bad(
            "reused",
            "POST",
            JOBS,
            "idempotency-key",
            options={"json": BODY | {"suffix": "x"}, "headers": {"Idempotency-Key": "k"}},
        ),
        server.http,
    )


async def test_idempotency_keys_of_different_api_keys_are_independent(server: JobServer) -> None:
    first = await server.create({"Idempotency-Key": "k"})
    other = {"Idempotency-Key": "k", "Authorization": "Bearer sk-rft-write"}
    assert (await server.create(other))["id"] != first["id"]


# -- bad requests ------------------------------------------------------------------------------------------------------


def create(what: str, param: str | None, **changes: Any) -> Bad:
    return Bad(what, "POST", JOBS, param, options={"json": {k: v for k, v in (BODY | changes).items() if v is not ...}})


def with_method(what: str, param: str, method: Any) -> Bad:
    return create(what, param, method=method)


def rft(what: str, param: str, **changes: Any) -> Bad:
    reinforcement = {k: v for k, v in (REINFORCEMENT | changes).items() if v is not ...}
    param = f"method.reinforcement.{param}" if param else "method.reinforcement"
    return with_method(what, param, {"type": "reinforcement", "reinforcement": reinforcement})


def hyper(name: str, value: Any) -> Bad:
    return rft(f"{name}={value!r}"[:60], f"hyperparameters.{name}", hyperparameters={name: value})


def grader(what: str, param: str, **spec: Any) -> Bad:
    return rft(what, f"grader{param}", grader=spec)


def tool(what: str, param: str, **changes: Any) -> Bad:
    return rft(what, f"tools[0]{param}", tools=[{k: v for k, v in (TOOL | changes).items() if v is not ...}])


def multi(what: str, param: str, **changes: Any) -> Bad:
    spec = {"type": "multi", "graders": {"a": EXACT}, "calculate_output": "a"} | changes
    return rft(what, f"grader{param}", grader=spec)


JUDGE = {"type": "score_model", "model": "judge", "input": [{"role": "user", "content": "{{sample.output_text}}"}]}
BAD_REQUESTS = [
    # the body
    Bad("no body", "POST", JOBS),
    Bad("no JSON", "POST", JOBS, options={"content": b"{", "headers": {"content-type": "application/json"}}),
    Bad("a list", "POST", JOBS, options={"json": [BODY]}),
    Bad("a text", "POST", JOBS, options={"json": "job"}),
    create("no model", "model", model=...),
    create("model null", "model", model=None),
    create("model a number", "model", model=5),
    create("model empty", "model", model=""),
    create("model too long", "model", model="m" * 256),
    create("model unknown", "model", model="gpt-99"),
    create("model a path", "model", model="../../etc/passwd"),
    create("model a URL", "model", model=f"https://x.example/?token={SECRET}"),
    create("no training file", "training_file", training_file=...),
    create("training file a list", "training_file", training_file=["file-1"]),
    create("training file unknown", "training_file", training_file="file-none"),
    create("training file a path", "training_file", training_file="../../etc/passwd"),
    create("training file empty", "training_file", training_file=""),
    create("training file too long", "training_file", training_file="f" * 300),
    create("training file of another purpose", "training_file", training_file="file-3"),
    create("validation file unknown", "validation_file", validation_file="file-none"),
    create("validation file an object", "validation_file", validation_file={"id": "file-1"}),
    create("test file unknown", "test_file", test_file="file-none"),
    # model_options
    create("options a text", "model_options", model_options="hermes"),
    create("an unknown option", "model_options.top_p", model_options={"top_p": 1}),
    create("a template's path", "model_options.chat_template", model_options={"chat_template": "/etc/passwd"}),
    create("a template of 65 kB", "model_options.chat_template", model_options={"chat_template": "{{ x }}" * 9_300}),
    create("a template of no text", "model_options.chat_template", model_options={"chat_template": ["{{ x }}"]}),
    create("a parser of no text", "model_options.tool_parser", model_options={"tool_parser": 1}),
    create("a parser below cluster", "cluster.tool_parser", cluster={"tool_parser": "mistral"}),
    create("an argument of the renderer", "model_options.template_arguments",
           model_options={"template_arguments": {"messages": "x"}}),
    create("a stop token too long", "model_options.stop_tokens[0]", model_options={"stop_tokens": ["x" * 65]}),
    create("suffix too long", "suffix", suffix="x" * 65),
    create("suffix a number", "suffix", suffix=3),
    create("seed negative", "seed", seed=-1),
    create("seed a text", "seed", seed="7"),
    create("seed a fraction", "seed", seed=1.5),
    create("seed too large", "seed", seed=2**63),
    create("seed true", "seed", seed=True),
    create("metadata a list", "metadata", metadata=["a"]),
    create("metadata value a number", "metadata.a", metadata={"a": 1}),
    create("metadata value too long", "metadata.a", metadata={"a": "x" * 513}),
    create("metadata key too long", "metadata." + "k" * 65, metadata={"k" * 65: "a"}),
    create("metadata too many", "metadata", metadata={str(i): "a" for i in range(17)}),
    create("integrations an object", "integrations", integrations={"type": "wandb"}),
    create("an unknown tracker", "integrations[1]", integrations=[{"type": "tensorboard"}, {"type": "comet"}]),
    create("a tracker twice", "integrations", integrations=[{"type": "tensorboard"}] * 2),
    create("wandb without a project", "integrations[0].wandb.project", integrations=[{"type": "wandb", "wandb": {}}]),
    create("unknown key", "n_epochs", n_epochs=3),
    create("cluster unknown key", "cluster.gpus", cluster={"gpus": 8}),
    create("cluster removed key", "cluster.dispatchers", cluster={"dispatchers": 2}),
    create("cluster a number", "cluster", cluster=8),
    create("cluster engines 0", "cluster.engines", cluster={"engines": 0}),
    create("top-level hyperparameters with a method", "hyperparameters", hyperparameters={"n_epochs": 3}),
    create("older hyperparameter unknown", "hyperparameters.lr", method=None, hyperparameters={"lr": 3}),
    create("older hyperparameter wrong", "method.supervised.hyperparameters.n_epochs", method=None,
           hyperparameters={"n_epochs": 0}),
    # the method
    with_method("method a text", "method", "reinforcement"),
    with_method("method without type", "method.type", {"reinforcement": REINFORCEMENT}),
    with_method("method dpo", "method.type", {"type": "dpo", "dpo": {}}),
    with_method("method of an unknown type", "method.type", {"type": "magic"}),
    with_method("method without its settings", "method", {"type": "reinforcement"}),
    with_method("method with another's settings", "method", {"type": "supervised", "reinforcement": REINFORCEMENT}),
    with_method("settings a list", "method.reinforcement", {"type": "reinforcement", "reinforcement": []}),
    with_method("supervised unknown key", "method.supervised.hyperparameters.eval_samples",
                {"type": "supervised", "supervised": {"hyperparameters": {"eval_samples": 2}}}),
    rft("no grader", "grader", grader=...),
    rft("grader null", "grader", grader=None),
    rft("unknown key", "budget", budget=3),
    rft("max_episode_steps 0", "max_episode_steps", max_episode_steps=0),
    rft("max_episode_steps a text", "max_episode_steps", max_episode_steps="many"),
    rft("response_format a text", "response_format", response_format="json"),
    rft("response_format unknown", "response_format", response_format={"type": "xml"}),
    rft("response_format without schema", "response_format", response_format={"type": "json_schema"}),
    rft("response_format no schema", "response_format",
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "banana"}}}),
    rft("response_format with a dangling reference", "response_format",
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "#/none"}}}),
    rft("response_format refers to a file", "response_format",
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "file:///etc/passwd"}}}),
    hyper("batch_size", 0), hyper("batch_size", -4), hyper("batch_size", "big"), hyper("batch_size", 2.5),
    hyper("batch_size", True), hyper("batch_size", 10**9), hyper("n_epochs", 0), hyper("n_epochs", 10**400),
    hyper("n_epochs", [1]), hyper("learning_rate_multiplier", 0), hyper("learning_rate_multiplier", -1),
    hyper("learning_rate_multiplier", 1e300), hyper("compute_multiplier", 0), hyper("compute_multiplier", 1e9),
    hyper("eval_interval", 0), hyper("eval_samples", "x"), hyper("reasoning_effort", "heroic"),
    hyper("beta", 0.1),
    rft("hyperparameters a list", "hyperparameters", hyperparameters=[1]),
    # tools
    rft("tools an object", "tools", tools={"search": TOOL}),
    rft("two tools with the same name", "tools", tools=[TOOL, TOOL]),
    tool("tool without name", ".name", name=...),
    tool("tool without server", ".server_url", server_url=...),
    tool("tool's server a number", ".server_url", server_url=5),
    tool("tool server that is not a URL", ".server_url", server_url="tools.example"),
    tool("tool's server a file", ".server_url", server_url="file:///etc/passwd"),
    tool("tool's server private", ".server_url", server_url="http://10.0.0.1/search"),
    tool("tool's server the cloud's metadata", ".server_url", server_url="http://169.254.169.254/latest"),
    tool("tool's server loopback in disguise", ".server_url", server_url="http://[::ffff:127.0.0.1]/x"),
    tool("tool's server with a strange port", ".server_url", server_url="http://tools.example:99999/x"),
    tool("header injection", ".server_url", headers={"X": f"{SECRET}\r\nHost: evil.example"}),
    tool("header name injection", ".server_url", headers={"X\r\nHost": SECRET}),
    tool("headers a text", ".headers", headers=SECRET),
    tool("header a list", ".headers.X", headers={"X": [SECRET]}),
    tool("timeout too long", ".timeout_s", timeout_s=30_000),
    tool("timeout 0", ".timeout_s", timeout_s=0),
    tool("retries too many", ".max_retries", max_retries=1000),
    tool("hedged without leave", "", hedge_after_s=1.0),
    rft("session without URL", "session", session={"max_open": 3}),
    rft("session private", "session.start_url", session={"start_url": "http://192.168.0.1/open"}),
    # graders
    grader("unknown grader", "", type="magic"),
    grader("grader without type", "", input="a"),
    grader("unknown operation", ".operation", **EXACT | {"operation": "like_it"}),
    grader("string check lacks input", ".input", type="string_check", reference="a", operation="eq"),
    grader("template of another name", ".input", **EXACT | {"input": "{{ env.HOME }}"}),
    grader("template with dunder", ".input", **EXACT | {"input": "{{ item.__class__ }}"}),
    grader("template not closed", ".input", **EXACT | {"input": "{{ item.a "}),
    grader("unknown metric", ".evaluation_metric", type="text_similarity", input="a", reference="b",
           evaluation_metric="x"),
    grader("python without source", ".source", type="python"),
    grader("python too long", ".source", type="python", source="#" * 300_000),
    grader("python with a syntax error", ".source", type="python", source="def grade(:"),
    grader("python without grade", ".source", type="python", source="x = 1"),
    grader("judge unknown", ".model", **JUDGE | {"model": "gpt-none"}),
    grader("judge without input", ".input", **JUDGE | {"input": []}),
    grader("judge with a descending range", ".range", **JUDGE | {"range": [1, 0]}),
    grader("endpoint without URL", ".url", type="endpoint"),
    grader("endpoint private", ".url", type="endpoint", url="http://127.0.0.1:9/grade", headers={"X": SECRET}),
    grader("endpoint ftp", ".url", type="endpoint", url="ftp://grader.example"),
    multi("multi without graders", ".graders", graders={}),
    multi("multi in multi", ".graders.a", graders={"a": {"type": "multi", "graders": {}, "calculate_output": "1"}}),
    multi("expression of unknown names", ".calculate_output", calculate_output="a + b"),
    multi("expression with a syntax error", ".calculate_output", calculate_output="a +"),
    multi("expression with dunder", ".calculate_output", calculate_output="a.__class__"),
    multi("expression that calls", ".calculate_output", calculate_output="open('/etc/passwd')"),
    multi("expression with a huge power", ".calculate_output", calculate_output="9^9^9^9^9"),
    multi("expression divides by zero", ".calculate_output", calculate_output="a / 0"),
    rft("guard without grader", "guards[0].grader", guards=[{"name": "g"}]),
    # the other routes
    *(
        Bad(f"{method} of an unknown job {path}", method, f"{JOBS}/ftjob-none{path}", "fine_tuning_job_id", 404)
        for method, path in [("GET", ""), ("POST", "/cancel"), ("POST", "/pause"), ("POST", "/resume"),
                             ("GET", "/events"), ("GET", "/checkpoints")]
    ),
    Bad("a job id that is too long", "GET", f"{JOBS}/" + "x" * 101, "job_id"),
    Bad("limit 0", "GET", f"{JOBS}?limit=0", "limit"),
    Bad("limit too large", "GET", f"{JOBS}?limit=100000", "limit"),
    Bad("limit a text", "GET", f"{JOBS}?limit=all", "limit"),
    Bad("after unknown", "GET", f"{JOBS}?after=ftjob-none", "after"),
    Bad("filter too long", "GET", f"{JOBS}?metadata[{'k' * 65}]=a", "metadata"),
    Bad("filter with quotes", "GET", f'{JOBS}?metadata[k"]=a', "metadata"),
    Bad("no such method", "DELETE", f"{JOBS}/ftjob-none", None, 405),
    Bad("key too long", "POST", JOBS, "idempotency-key",
        options={"json": BODY, "headers": {"Idempotency-Key": "k" * 300}}),
]  # fmt: skip


one_world = fixture_of(JobServer, scope="module")


@pytest.mark.parametrize("bad", BAD_REQUESTS, ids=str)
async def test_a_bad_request_is_refused_and_creates_no_job(bad: Bad, one_world: JobServer) -> None:
    await check_refused(bad, one_world.http)
    assert one_world.store.list_jobs(None) == ([], False)


@pytest.mark.parametrize("path", ["", "/cancel", "/pause", "/resume"])
async def test_a_read_only_key_cannot_change_anything(server: JobServer, path: str) -> None:
    job = await server.create()
    headers = {"Authorization": "Bearer sk-rft-read"}
    target = JOBS + (f"/{job['id']}{path}" if path else "")
    response = await server.http.post(target, json=BODY, headers=headers)
    assert response.status_code == 403 and response.json()["error"]["code"] == "insufficient_scope"
    assert (await server.http.get(f"{JOBS}/{job['id']}", headers=headers)).status_code == 200
