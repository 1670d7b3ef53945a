"""Plans a change with a model behind OpenAI's API: `python -m examples.edit_planning.agent REPOSITORY "MESSAGE"`.

OPENAI_BASE_URL and OPENAI_API_KEY select the server. The model inspects a checkout of HEAD with the tools that it was
trained with.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from subprocess import CalledProcessError
from tempfile import TemporaryDirectory
from typing import Final

from openai import OpenAI, OpenAIError

from examples.common.agent import converse, shown
from examples.edit_planning.commands import TOOLS, Refused
from examples.edit_planning.make_data import row
from examples.edit_planning.repositories import Unknown, check_out, git

MODEL: Final = "planner"


def call(name: str, arguments: str, checkout: Path) -> str:
    """Return a tool's output, or an error message for the model."""
    try:
        parameter, run = TOOLS[name]
        return run(json.loads(arguments)[parameter], checkout)
    except Refused as error:
        return f"Error: {error}"
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError):
        return f"Error: there is no such call. The tools are: {', '.join(TOOLS)}."


def plan(client: OpenAI, model: str, repository: Path, message: str) -> str:
    """Return the model's plan for a change of HEAD, and print the conversation."""
    commit = git(repository, "rev-parse", "HEAD").strip()
    task = row(repository.name, commit, message, [])
    answer = ""
    with TemporaryDirectory() as folder:
        checkout = Path(folder) / "checkout"
        check_out(repository.resolve(), commit, checkout)
        tools = partial(call, checkout=checkout)
        for said in converse(client, model, task["messages"], task["tools"], tools):
            print(shown(said), flush=True)
            answer = said.get("content") or ""
    return answer


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.edit_planning.agent")
    parser.add_argument("repository", type=Path)
    parser.add_argument("message", help="what the change is, as a commit's message would say it")
    parser.add_argument("--model", default=MODEL, help="the model's name at the server")
    options = parser.parse_args(arguments)
    try:
        plan(OpenAI(), options.model, options.repository, options.message)
    except CalledProcessError as error:
        raise SystemExit(f"git cannot read {options.repository}: {error.stderr}") from None
    except Unknown as error:
        raise SystemExit(str(error)) from None
    except OpenAIError as error:
        raise SystemExit(f"the server of OPENAI_BASE_URL: {error}") from None


if __name__ == "__main__":
    main()
