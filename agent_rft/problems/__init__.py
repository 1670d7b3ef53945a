"""Registry of problem codes: the meaning of each code and what to do about it.

The command line prints the code of a problem in brackets after the message. The API returns it in the `code` of an
error and in the `error` of a failed job. A key with a `<placeholder>` stands for a family of codes: `invalid_<type>`
includes `invalid_int_parsing`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from agent_rft.problems.api_codes import API_CODES
from agent_rft.problems.grading_codes import GRADE_CODES, GRADING_CODES
from agent_rft.problems.import_codes import IMPORT_CODES
from agent_rft.problems.job_codes import JOB_CODES
from agent_rft.problems.problem_code import CheckCode, ProblemCode
from agent_rft.problems.run_codes import RUNNING_CODES, STARTING_CODES

PROBLEM_CODE_GROUPS: dict[str, Mapping[str, ProblemCode]] = {
    **JOB_CODES,
    **GRADING_CODES,
    **GRADE_CODES,
    **STARTING_CODES,
    **RUNNING_CODES,
    **API_CODES,
    **IMPORT_CODES,
}
"""All codes, grouped by heading in the reference."""
PROBLEM_CODES: dict[str, ProblemCode] = {
    name: code for group in PROBLEM_CODE_GROUPS.values() for name, code in group.items()
}

_PLACEHOLDER = re.compile(r"<\w+>")
_FAMILIES = {name: re.compile(_PLACEHOLDER.sub(r"\\w+", name)) for name in PROBLEM_CODES if "<" in name}


def find_code(code: str) -> str | None:
    """Return the key of PROBLEM_CODES for `code`, or None if there is no such key.

    The key may be a family of codes: for `invalid_int_parsing`, it is `invalid_<type>`.
    """
    if code in PROBLEM_CODES:
        return code
    return next((family for family, pattern in _FAMILIES.items() if pattern.fullmatch(code)), None)


def stops_accepted_job(code: str) -> bool:
    """Return whether a problem with this code stops a job that passed an earlier check.

    The result is also True if `code` is unknown or is not a code of the job check.
    """
    entry = PROBLEM_CODES.get(find_code(code) or "")
    return entry.stops_accepted_jobs if isinstance(entry, CheckCode) else True


def is_warning(code: str) -> bool:
    """Return whether a problem with this code is only a warning, which never stops a job."""
    entry = PROBLEM_CODES.get(find_code(code) or "")
    return isinstance(entry, CheckCode) and entry.is_warning
