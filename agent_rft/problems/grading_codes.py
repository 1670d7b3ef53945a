"""Problem codes of graders, tools and sessions, from the check of a job and from grading."""

from __future__ import annotations

from agent_rft.problems.problem_code import CheckCode, ProblemCode

GRADING_CODES: dict[str, dict[str, CheckCode]] = {
    "Graders": {
        "duplicate_name": CheckCode(
            "Two guards have the same name, but metrics and traces identify guards by name.",
            "Rename one of the guards.",
            stops_accepted_jobs=False,
        ),
        "invalid_template": CheckCode(
            "A string of a grader contains `{{ ... }}` with something other than a path into the row (`item`) or the "
            "model's output (`sample`). Filters, loops and calls are not supported.",
            "Write `{{ item.answer }}` or `{{ sample.output_text }}`. For anything more, use a python grader.",
            stops_accepted_jobs=False,
        ),
        "grader_too_large": CheckCode(
            "A grader exceeds a limit. A multi grader can have at most 64 parts. At most 16 of these parts can start a "
            "process (python) or call a model or an endpoint, because each grade runs all parts. All graders of a job "
            "together, including guards and the held-out grader, can have twice as many parts. A template can have at "
            "most 1,000 `{{ ... }}`. The sources of all python graders together can have at most 256,000 bytes.",
            "Combine several checks in one python grader that returns one number for all of them.",
            stops_accepted_jobs=False,
        ),
        "invalid_source": CheckCode(
            "The `source` of a python grader does not compile, or does not define a function `grade(sample, item)`.",
            "First run the source as a Python script, without agent-rft.",
            stops_accepted_jobs=False,
        ),
        "missing_import": CheckCode(
            "A python grader imports a package that its sandbox does not contain. A sandbox contains the standard "
            "library and those packages of OpenAI's python graders that are installed, with their dependencies. An "
            "import in a `try` or `if` is not checked.",
            "Install the package on all machines that run graders if it is listed in the manual's page on graders. "
            "Otherwise, use an endpoint grader.",
            stops_accepted_jobs=False,
        ),
        "missing_reference": CheckCode(
            "The check `reference_returned` compares the code with the reference solution, which is missing.",
            "Set `reference`, for example to `{{ item.reference }}`.",
            stops_accepted_jobs=False,
        ),
        "unknown_model": CheckCode(
            "A grader calls a model (a judge or an embedding model) that is not listed under `models` in the "
            "operator's configuration. Only the operator sets the hosts and keys of judges, so job authors never need "
            "the keys.",
            "Use a model that the message lists, or ask the operator to add the model.",
            stops_accepted_jobs=True,
        ),
        "invalid_message": CheckCode(
            "A message in the `input` of a model grader is not in the chat format.",
            'Write `{"role": "user", "content": "text with {{ sample.output_text }}"}`.',
            stops_accepted_jobs=False,
        ),
        "invalid_parameter": CheckCode(
            "`sampling_params` of a model grader sets a parameter that the grader controls, such as the format of the "
            "judge's answer.",
            "Remove the parameter.",
            stops_accepted_jobs=False,
        ),
        "unknown_label": CheckCode(
            "`passing_labels` contains a label that is not in `labels`, so the judge cannot return it. No sample could "
            "ever pass with this label.",
            "Use only values of `labels`.",
            stops_accepted_jobs=False,
        ),
        "logprobs_unsupported": CheckCode(
            "The operator set `scoring: logprobs` for this judge in `models`. The grade is therefore computed from "
            "probabilities for the first token of the judge's answer. Labels must begin differently, because only "
            "their first tokens are compared, and both ends of a score's range must be single digits. No label ever "
            "has a probability of 1, so the highest grade is never reached. A guard's `pass_threshold` must be lower "
            "than the highest grade.",
            "Change the labels, the range or the threshold as the message describes, or ask the operator to remove "
            "`scoring`.",
            stops_accepted_jobs=False,
        ),
        "invalid_grader_name": CheckCode(
            "The name of a part of a multi grader is not a valid variable name in `calculate_output`, or is reserved.",
            "Rename the part. A name consists of letters, digits and `_`, and does not start with a digit.",
            stops_accepted_jobs=False,
        ),
        "invalid_expression": CheckCode(
            "`calculate_output` of a multi grader cannot be parsed, or uses a name that is not the name of a part of "
            "the grader.",
            "Use `+ - * / ^`, parentheses, numbers, the names of the parts, and `min`, `max`, `abs`, `floor`, `ceil`, "
            "`exp`, `sqrt` and `log`.",
            stops_accepted_jobs=False,
        ),
        "invalid_line": CheckCode(
            "A line of the input file of `agent-rft grade` is not an object with `sample` and `item`.",
            'Write `{"sample": ..., "item": {...}}` on each line; `sample` may be the text of the answer.',
            stops_accepted_jobs=False,
        ),
    },
    "Tools, graders and sessions": {
        "invalid_endpoint": CheckCode(
            "A URL or a header of a tool, grader, session or judge is invalid. A URL must begin with `http` or `https` "
            "and have a host. A header must not contain characters that HTTP does not allow. Often a token was copied "
            "with its line break.",
            "Fix the URL or the headers of this entry.",
            stops_accepted_jobs=False,
        ),
        "invalid_signing_secret": CheckCode(
            "A `signing_secret` is not in the format of Standard Webhooks, so the library that verifies signatures in "
            "your endpoint could not read the secret.",
            "Create a secret with `echo whsec_$(openssl rand -base64 32)`, and pass it as `${NAME}` from the "
            "environment.",
            stops_accepted_jobs=True,
        ),
        "forbidden_address": CheckCode(
            "The host has an IP address that jobs may not call: this machine, a private network or a cloud's metadata "
            "service. Otherwise anybody who may create jobs could reach hosts behind the firewall. Names are resolved "
            "at each connection, so changing the address of a name does not help. Commands that start their own Ray "
            "cluster may call the loopback and private addresses in the job file, unless `agent-rft.yaml` sets "
            "`allowed_networks`.",
            "Ask the operator to add the entry in the message, or use a public address. For a tool on port 8000 of "
            'your machine, set `allowed_networks: ["127.0.0.1:8000"]` in `agent-rft.yaml`.',
            stops_accepted_jobs=True,
        ),
        "endpoint_refused": CheckCode(
            "The endpoint answered 401, or its first answer was 403. The job then ends without a retry, because every "
            "call with a wrong token fails. The message includes the endpoint's reason. If a later answer is 403, only "
            "this call fails. The job ends if more than half of the latest 64 answers (at least 16) are 403.",
            "Put the token into the endpoint's `headers`, as `${NAME}` from the environment. For a judge, the "
            "operator sets the token in the judge's entry in `models`.",
            stops_accepted_jobs=True,
        ),
        "wrong_path": CheckCode(
            "The server answers, but the path is probably wrong. It redirects, does not accept POST, or answers "
            "exactly as it does for a path that does not exist.",
            "Fix the path of the URL. Redirects are not followed.",
            stops_accepted_jobs=True,
        ),
        "unanswered_trial_call": CheckCode(
            "A warning. The check calls each endpoint once. This endpoint accepted the call, but did not answer "
            "within ten minutes, the longest time that the check waits. The endpoint's `timeout_s` is longer, so the "
            "endpoint may still be working: the check cannot distinguish a long call from a server that hangs.",
            "Read the endpoint's log. If the example call should be fast, find out what the endpoint waits for. If "
            "such calls normally take this long, no action is needed.",
            stops_accepted_jobs=False,
            is_warning=True,
        ),
        "no_json_schema": CheckCode(
            "A warning. The judge's server rejected the response format `json_schema`, so requests use `json_object`, "
            "with the schema in the system message. Answers are validated equally strictly, but invalid answers and "
            "retries may be more frequent.",
            "Set `response_format: json_object` in the judge's entry of `models`, so that requests do not try "
            "`json_schema` first.",
            stops_accepted_jobs=False,
            is_warning=True,
        ),
        "short_rollout_timeout": CheckCode(
            "A warning. A call may take longer than the rollout that waits for it. The time of tool calls counts "
            "toward `limits.rollout_timeout_s`. The time of session starts and of grading counts toward a separate "
            "limit for waiting, which is six times `limits.rollout_timeout_s`. A rollout that exceeds one of these "
            "limits is discarded even if its call was answered, and the work of the call is lost.",
            "Raise `limits.rollout_timeout_s` above the longest call, plus time for the model and the other calls of "
            "a rollout. Or lower the endpoint's `timeout_s`, so that a call that hangs is cancelled earlier.",
            stops_accepted_jobs=False,
        ),
        "tool_failed": CheckCode(
            "The tool failed in the check, which calls it once with example values. It did not answer, its answer "
            "violates the contract, or a proxy in front of it rejects the size of the call (413, 414, 431). During a "
            "run, a rollout with such a call is discarded, not graded as wrong.",
            'Make the tool answer POST with `{"output": "..."}`, even for values that make no sense. The model sees a '
            "response with status 400 to 499 as an error.",
            stops_accepted_jobs=True,
        ),
        "grader_failed": CheckCode(
            "The grader did not return a finite number for an example. Samples on which a grader fails are lost, so "
            "the job would train only on the other samples.",
            'Make the grader return a number for any sample, even an empty one. An endpoint returns `{"score": '
            "number}`.",
            stops_accepted_jobs=True,
        ),
        "session_failed": CheckCode(
            "In the check, the session server failed to start or to end a session. Rollouts need a session before "
            "their first tool call. A session that does not end keeps resources of your server occupied.",
            "Make both URLs answer with any JSON and status 200.",
            stops_accepted_jobs=True,
        ),
    },
}

GRADE_CODES: dict[str, dict[str, ProblemCode]] = {
    "Failed grades": {
        "formula_parse_error": ProblemCode(
            "`calculate_output` has no finite value for the parts' scores, for example because of a division by zero "
            "or the root of a negative number. The rollout is discarded.",
            "Change the expression so that it has a value for all scores that the parts can return, for example with "
            "`max(x, 0.01)`.",
        ),
        "invalid_variable_error": ProblemCode(
            "A path in a template has no value. If the path begins with `item`, the row is wrong. If the path begins "
            "with `sample`, the model's output differs from what the grader expects; for example, it is not JSON.",
            "Fix the row or the path. If it is normal that the model's output has no such value, set `invalid_grade` "
            "of a multi grader: samples without the value then get this grade and are not discarded.",
        ),
        "python_grader_runtime_error": ProblemCode(
            "The program of a python grader raised an error, did not return a number, or used too much memory. The "
            "details contain its traceback.",
            "Run the grader on the same sample with `agent-rft grade` or the API's `graders/run`.",
        ),
        "python_grader_server_error": ProblemCode(
            "The program of a python grader did not end within the grader's `timeout_s`, or its sandbox did not start "
            "or was lost.",
            "Raise `timeout_s` or make the grader faster. If every grade fails, check the node's log.",
        ),
        "model_grader_server_error": ProblemCode(
            "The judge or the embedding model did not answer after all retries, or did not answer in the format of "
            "OpenAI's API.",
            "Check the model's server, and the model's entry under `models` in the operator's configuration.",
        ),
        "model_grader_refusal_error": ProblemCode(
            "The judge, or the judge's content filter, refused to grade the sample.",
            "Read the sample in the traces. Judges often refuse because they consider the task or the prompt harmful.",
        ),
        "model_grader_parse_error": ProblemCode(
            "The judge answered every request, but never with a valid grade. The message includes its last answer.",
            "Use a judge that follows a JSON schema, describe the answer format in the prompt, and allow enough "
            "tokens.",
        ),
    },
}
