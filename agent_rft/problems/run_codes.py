"""Problem codes of runs that start, resume or end, and of a server's failed jobs."""

from __future__ import annotations

from agent_rft.problems.problem_code import CheckCode, ProblemCode

STARTING_CODES: dict[str, dict[str, CheckCode]] = {
    "Starting and resuming": {
        "no_cluster": CheckCode(
            "No Ray cluster answers at the address, or this process could not join it. If the process could not join, "
            "the version of Ray or Python differs, or the token is missing.",
            "Check `--address` and `RAY_ADDRESS`. To use a cluster on this machine only, omit both.",
            stops_accepted_jobs=True,
        ),
        "setting_differs": CheckCode(
            "A setting of the job file differs from the value at the start of the run, or this version cannot read "
            "the run's value. A checkpoint contains counters, the row order and the optimizer state, which depend on "
            "the settings. Resuming with other settings would mix two experiments. URLs, headers, timeouts, resources "
            "and validation settings may differ.",
            "Set the value that the run started with, or omit the setting to keep that value (`job.resolved.json` in "
            "the run folder lists all values). Or start a new run with `model` set to the checkpoint.",
            stops_accepted_jobs=True,
        ),
    },
}

RUNNING_CODES: dict[str, dict[str, ProblemCode]] = {
    "Failed jobs of a server": {
        "invalid_training_file": ProblemCode(
            "The training file has problems. The message describes the first problem; the job's events list all "
            "problems.",
            "Fix the rows, upload the file again and create a new job.",
        ),
        "invalid_validation_file": ProblemCode(
            "The validation file has problems. The message describes the first problem; the job's events list all "
            "problems.",
            "Fix the rows, upload the file again and create a new job.",
        ),
        "invalid_test_file": ProblemCode(
            "The test file has problems. The message describes the first problem; the job's events list all problems.",
            "Fix the rows, upload the file again and create a new job.",
        ),
        "check_failed": ProblemCode(
            "The check of the job has no result: it failed, or exceeded its limits of time, CPU time or memory. "
            "Usually a tool or the grader answers slowly, the cluster was too busy to run the check, or rows or "
            "schemas are very large.",
            "Do what the message suggests, and create the job again. If the message names no limit, an admin can read "
            "the output of the failed check with `agent-rft jobs log`.",
        ),
        "training_failed": ProblemCode(
            "Training stopped during the run: gradients were not finite, engine and learner computed different "
            "log-probabilities, batches had no signal, or engines or the learner failed too often. Earlier "
            "checkpoints can be used.",
            "Read the message and the job's last events. If batches had no signal, check the grades in the traces.",
        ),
        "user_error": ProblemCode(
            "Training stopped because of a problem that only the job's author can fix, such as an endpoint that "
            "started to reject its token.",
            "Fix the problem that the message describes, and create the job again. To continue from the last "
            "checkpoint, set `model` to this checkpoint.",
        ),
        "driver_lost": ProblemCode(
            "The process that runs the job was lost several times, for example because its node failed or memory ran "
            "out. Each time, a new process resumed from the last checkpoint. The server has now given up.",
            "Read the last reason in the message. An admin can read the drivers' output with `agent-rft jobs log`. "
            "SIGKILL usually means that a node has too little memory.",
        ),
        "internal_error": ProblemCode(
            "The cause is a bug, or a problem that no check covers. For an API request, the server's log has the "
            "details under the request id; for a job, admins can read them with `agent-rft jobs log`.",
            "Send the operator the id (header `x-request-id`, or the id of the job).",
        ),
    },
}
