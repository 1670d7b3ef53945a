"""The codes of problems when a run starts, resumes or ends, and of failed jobs of a server."""

from __future__ import annotations

from agent_rft.problems.code import CheckCode, ProblemCode

STARTING_CODES: dict[str, dict[str, CheckCode]] = {
    "Starting and resuming": {
        "no_cluster": CheckCode(
            "There is no Ray cluster at the address, or it did not let this process join: other version of Ray or "
            "Python, or a token that is missing.",
            "Check `--address` and `RAY_ADDRESS`; leave both out for a cluster of this machine only.",
            stops_accepted=True,
        ),
        "job_changed": CheckCode(
            "The job file names another value than the one the run began with, or the run has a value that this "
            "version cannot read. Counters, order of rows and optimizer state of a checkpoint belong to the job that "
            "wrote it, so a run with other settings would mix two experiments. URLs, headers, timeouts, resources and "
            "the settings of validations may differ.",
            "Give the value of the run, or leave the setting out: it then keeps its value (`job.resolved.json` of the "
            "run folder has all of them). Or start a new run with `model` set to the checkpoint.",
            stops_accepted=True,
        ),
    },
}

RUNNING_CODES: dict[str, dict[str, ProblemCode]] = {
    "Failed jobs of a server": {
        "invalid_training_file": ProblemCode(
            "The training file has a problem; the message describes the first, the job's events all of them.",
            "Fix the rows, upload the file again and create a new job.",
        ),
        "invalid_validation_file": ProblemCode(
            "The validation file has a problem; the message describes the first, the job's events all of them.",
            "Fix the rows, upload the file again and create a new job.",
        ),
        "invalid_test_file": ProblemCode(
            "The test file has a problem; the message describes the first, the job's events all of them.",
            "Fix the rows, upload the file again and create a new job.",
        ),
        "validation_failed": ProblemCode(
            "The check of the job itself failed, did not end in time, or took more processor time or memory than one "
            "check may, so nothing is known about the job. Most often a tool or the grader answers slowly, the cluster "
            "was too busy to run it, or rows or schemas are very large.",
            "Do what the message says, and create the job again. If it names no limit, an admin sees the output of the "
            "check with `agent-rft jobs log`.",
        ),
        "training_failed": ProblemCode(
            "Training stopped for a reason that is not in the job's form: numbers that can no longer be trusted, no "
            "signal to learn from, or a learner that died. Checkpoints up to there can be used.",
            "Read the message and the job's last events. For a job without signal, look at the grades in the traces.",
        ),
        "user_error": ProblemCode(
            "Training stopped because of something that only the job's author can fix, such as an endpoint that began "
            "to refuse its token.",
            "Fix what the message names, and create the job again, with the last checkpoint as its model if you like.",
        ),
        "driver_lost": ProblemCode(
            "The process that runs the job was lost several times, for example with its node or by lack of memory. "
            "Each time a new one resumed from the last checkpoint; now the server gave up.",
            "Read the last reason in the message. An admin sees with `agent-rft jobs log` what the drivers wrote. "
            "SIGKILL mostly means that a node has too little memory.",
        ),
        "internal_error": ProblemCode(
            "A bug, or something that no check foresaw. Of an API request, the server's log has the details under the "
            "request's id; of a job, `agent-rft jobs log` shows them to admins.",
            "Tell the operator the id (header `x-request-id`, or the job's).",
        ),
    },
}
