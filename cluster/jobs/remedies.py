"""What a client of the API can do about a problem, where the remedy speaks of local files, the machine or commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trainer.errors import Problem

CREATE_AGAIN = "upload the corrected file, and create the job again with its id"
OF_ROWS = frozenset({"empty_file", "invalid_n_examples", "json_array"})
"""Codes of problems with rows that are of no single line."""
REUPLOAD = "upload the file again as UTF-8 text, and create the job again with its id"
TEMPLATE = "set model_options.chat_template to the text of a template that renders tools, calls and results"
OTHER_MODEL = "use another model (GET /v1/models), or ask the server's operator"
OPERATOR = "change the request, or ask the server's operator"

REMEDIES: Mapping[str, str] = {
    "calls_not_read": TEMPLATE,
    "forbidden_address": "use an address that the server may call, or ask its operator to allow this one",
    "invalid_signing_secret": "write whsec_ and 24 to 64 random bytes in base64",
    "missing_file": REUPLOAD,
    "missing_model": OTHER_MODEL,
    "missing_variable": "write the value itself: a server fills in no variables",
    "no_engine": OPERATOR,
    "no_free_resources": "try again later, or ask the server's operator",
    "no_shared_memory": OPERATOR,
    "not_a_model": OTHER_MODEL,
    "other_adapter": "give `lora` the shape of the model's adapter, or use a whole model",
    "template_fails": TEMPLATE,
    "tools_not_in_prompt": f"{TEMPLATE}; or set model_options.tools_in_prompt: false if it needs no descriptions",
    "unreadable_file": REUPLOAD,
    "unknown_model": "use a model that the message lists, or ask the server's operator to add this one",
}
"""By code; other remedies are the same for everybody."""


def for_client(problem: Problem) -> Problem:
    """The problem with a remedy that is possible through the API."""
    remedy = REMEDIES.get(problem.code, problem.remedy)
    if problem.code not in REMEDIES and (problem.line is not None or problem.code in OF_ROWS):
        remedy = f"{remedy}; {CREATE_AGAIN}"
    return replace(problem, remedy=remedy)
