"""The exit codes of the command line."""

from __future__ import annotations

EXIT_CODES = {
    0: "Success: the run or the followed job is done.",
    1: "Failure: the run or the followed job failed, an endpoint or a server does not answer, or there is nothing to "
    "grade.",
    2: "The job, the request or the command line is invalid, or `plan` found something that does not fit. Nothing was "
    "started.",
    3: "The followed job was cancelled.",
    4: "`ready` found that something is to be done before training: its verdict is `fix_first` or `warm_start`.",
    130: "Stopped by a signal. A run that was stopped resumes with `--resume`.",
}
