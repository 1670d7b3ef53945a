"""From dataset files to a tuned agent with OpenAI's SDK, by setting only OPENAI_BASE_URL and OPENAI_API_KEY.

    LEDGER_TOOLS_URL=... LEDGER_GRADER_URL=... LEDGER_TOKEN=... python -m examples.openai_sdk.agent_rft

Uploads the ledger's tasks, starts a reinforcement job with tools and a grader, and follows its events. Then runs the
tuned model as an agent that makes all calls of a turn concurrently: first with responses, then with chat completions.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
from openai import OpenAI

DATA = Path(__file__).parents[1] / "ledger" / "data"
TOOLS = ("list", "search", "cat")
MAX_TURNS = 12
POLL_S = 1.0

Answer = tuple[str, list[dict[str, Any]]]
"""Final answer, and all tool calls in the format of graders."""


@dataclass(frozen=True)
class Servers:
    """Client for the ledger's tools and grader."""

    tools_url: str
    grader_url: str
    token: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def tool(self, name: str, arguments: str, trace_id: str, item: dict[str, Any]) -> str:
        """Send a tool call in the same way as in training, and return its output."""
        call_id = f"call_{secrets.token_hex(8)}"
        body = {"type": "function_call", "id": call_id, "call_id": call_id, "name": name, "arguments": arguments}
        answer = httpx.post(
            f"{self.tools_url}/tools/{name}", json=body | {"trace_id": trace_id, "item": item}, headers=self.headers
        )
        return str(answer.json()["output"]) if answer.is_success else f"Error: {answer.text}"

    def grade(self, text: str, calls: Sequence[dict[str, Any]], trace_id: str, item: dict[str, Any]) -> float:
        sample = {"output_text": text, "output_tools": list(calls), "choices": []}
        body = {"sample": sample, "item": item, "trace_id": trace_id}
        answer = httpx.post(f"{self.grader_url}/grade", json=body, headers=self.headers)
        return float(answer.raise_for_status().json()["score"])


def upload(client: OpenAI, path: Path) -> str:
    """Upload a file and return its id."""
    return client.files.create(file=path, purpose="fine-tune").id


def tools_and_grader(servers: Servers) -> dict[str, Any]:
    """Return the required settings of a reinforcement job."""
    tools = [
        {"name": name, "server_url": f"{servers.tools_url}/tools/{name}", "headers": servers.headers} for name in TOOLS
    ]
    return {
        "tools": tools,
        "grader": {"type": "endpoint", "url": f"{servers.grader_url}/grade", "headers": servers.headers},
    }


def start(client: OpenAI, model: str, servers: Servers, training: str, validation: str, **more: Any) -> Any:
    """Create the job. `more` is added to `method.reinforcement`."""
    reinforcement = {**tools_and_grader(servers), "max_episode_steps": 32, **more}
    method: Any = {"type": "reinforcement", "reinforcement": reinforcement}
    return client.fine_tuning.jobs.create(
        model=model, training_file=training, validation_file=validation, method=method, suffix="ledger", seed=7
    )


def follow(client: OpenAI, job_id: str) -> Any:
    """Print events until the job has ended, and return the job."""
    seen: set[str] = set()
    while True:
        job = client.fine_tuning.jobs.retrieve(job_id)
        events = client.fine_tuning.jobs.list_events(job_id, limit=100)
        for event in reversed([event for event in events.data if event.id not in seen]):
            seen.add(event.id)
            print(f"{event.level}: {event.message}", flush=True)
        if job.status in ("succeeded", "failed", "cancelled"):
            return job
        time.sleep(POLL_S)


def by_responses(client: OpenAI, model: str, item: dict[str, Any], servers: Servers) -> Answer:
    """Run the agent loop on a row with /v1/responses."""
    trace_id, calls = f"trace_{secrets.token_hex(8)}", list[dict[str, Any]]()
    tools: Any = [{"type": "function", **tool["function"]} for tool in item["tools"]]
    context: list[Any] = list(item["messages"])
    for _ in range(MAX_TURNS):
        response = client.responses.create(model=model, input=context, tools=tools, store=False, temperature=1.0)
        wanted = [output for output in response.output if output.type == "function_call"]
        if not wanted:
            return response.output_text, calls
        context += [output.model_dump(exclude_none=True) for output in response.output]
        with ThreadPoolExecutor() as pool:
            results = list(pool.map(lambda call: servers.tool(call.name, call.arguments, trace_id, item), wanted))
        for call, result in zip(wanted, results, strict=True):
            calls.append(_called(call.call_id, call.name, call.arguments))
            context.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
    return "", calls


def by_chat(client: OpenAI, model: str, item: dict[str, Any], servers: Servers) -> Answer:
    """Run the agent loop on a row with /v1/chat/completions."""
    trace_id, calls = f"trace_{secrets.token_hex(8)}", list[dict[str, Any]]()
    messages: list[Any] = list(item["messages"])
    for _ in range(MAX_TURNS):
        completion = client.chat.completions.create(
            model=model, messages=messages, tools=item["tools"], temperature=1.0
        )
        message = completion.choices[0].message
        if not message.tool_calls:
            return message.content or "", calls
        messages.append(message.model_dump(exclude_none=True))
        wanted = [(call.id, call.function) for call in message.tool_calls if call.type == "function"]
        with ThreadPoolExecutor() as pool:
            results = list(pool.map(lambda w: servers.tool(w[1].name, w[1].arguments, trace_id, item), wanted))
        for (call_id, function), result in zip(wanted, results, strict=True):
            calls.append(_called(call_id, function.name, function.arguments))
            messages.append({"role": "tool", "tool_call_id": call_id, "content": result})
    return "", calls


Agent = Callable[[OpenAI, str, dict[str, Any], Servers], Answer]


def mean_grade(agent: Agent, client: OpenAI, model: str, rows: Sequence[dict[str, Any]], servers: Servers) -> float:
    """Return the agent's mean grade on the rows, of which eight run concurrently."""

    def one(row: dict[str, Any]) -> float:
        text, calls = agent(client, model, row, servers)
        return servers.grade(text, calls, f"trace_{secrets.token_hex(8)}", row)

    with ThreadPoolExecutor(8) as pool:
        return fmean(pool.map(one, rows))


def _called(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt-5", help="name of a model on the server")
    parser.add_argument("--rows", type=int, default=24, help="number of validation rows to evaluate on")
    options = parser.parse_args()
    servers = Servers(*(os.environ[name] for name in ("LEDGER_TOOLS_URL", "LEDGER_GRADER_URL", "LEDGER_TOKEN")))
    client = OpenAI()
    job = start(
        client,
        options.model,
        servers,
        upload(client, DATA / "train.jsonl"),
        upload(client, DATA / "validation.jsonl"),
        hyperparameters={"batch_size": 16, "n_epochs": 1, "eval_interval": 5},
        limits={"max_tool_calls": 20, "max_completion_tokens": 600},
        reward={"tool_call_budget": 2, "tool_call_penalty": 0.03},
        algorithm={"advantage": "grpo", "learning_rate": 5e-4, "updates_per_batch": 2},
    )
    job = follow(client, job.id)
    print(f"{job.id}: {job.status}, {job.fine_tuned_model}", flush=True)
    if job.status != "succeeded":
        raise SystemExit(f"{job.error}")
    for checkpoint in client.fine_tuning.jobs.checkpoints.list(job.id).data:
        grades = checkpoint.metrics.model_dump(exclude_none=True)
        print(f"  {checkpoint.fine_tuned_model_checkpoint}: validation reward {grades['full_valid_mean_reward']:.3f}")
    with (DATA / "validation.jsonl").open() as file:
        rows = [json.loads(line) for line in islice(file, options.rows)]
    for name, agent in (("responses", by_responses), ("chat completions", by_chat)):
        print(f"{name}: mean grade {mean_grade(agent, client, job.fine_tuned_model, rows, servers):.3f}", flush=True)


if __name__ == "__main__":
    main()
