"""The codes of problems with graders, tools and sessions, when a job is checked and while it grades."""

from __future__ import annotations

from agent_rft.problems.code import CheckCode, ProblemCode

GRADING_CODES: dict[str, dict[str, CheckCode]] = {
    "Graders": {
        "duplicate_name": CheckCode(
            "Two guards have the same name, which is how metrics and traces tell them apart.",
            "Rename one of them.",
            stops_accepted=False,
        ),
        "invalid_template": CheckCode(
            "A text of a grader has `{{ ... }}` with something else than a path into the row (`item`) or into what the "
            "model wrote (`sample`). It is a path only: there are no filters, loops or calls.",
            "Write `{{ item.answer }}` or `{{ sample.output_text }}`; more needs a python grader.",
            stops_accepted=False,
        ),
        "grader_too_large": CheckCode(
            "A multi grader has at most 64 parts, of which 16 may start a process (python) or ask a model or an "
            "endpoint, since each grade costs all of them; all graders of a job, with its guards and the held-out "
            "grader, are at most twice as many. A template has at most 1,000 `{{ ... }}`, and the sources of all "
            "python graders together at most 256,000 bytes.",
            "Combine several checks in one python grader, which returns one number for all.",
            stops_accepted=False,
        ),
        "invalid_source": CheckCode(
            "The `source` of a python grader does not compile, or does not define a function `grade(sample, item)`.",
            "Run the file with Python on its own first.",
            stops_accepted=False,
        ),
        "missing_reference": CheckCode(
            "The check `reference_returned` compares the code with the reference solution, so it needs that solution.",
            "Set `reference`, for example to `{{ item.reference }}`.",
            stops_accepted=False,
        ),
        "unknown_model": CheckCode(
            "A grader calls a model (a judge or an embedding) that is not listed in the operator's configuration, "
            "below `models`. Jobs cannot name hosts and keys of judges themselves, so that a job's author needs none "
            "of the operator's keys.",
            "Use a model that the message lists, or let the operator add it.",
            stops_accepted=True,
        ),
        "invalid_message": CheckCode(
            "A message in the `input` of a model grader is not in the chat format.",
            'Write `{"role": "user", "content": "text with {{ sample.output_text }}"}`.',
            stops_accepted=False,
        ),
        "invalid_parameter": CheckCode(
            "`sampling_params` of a model grader sets something that the grader sets itself, such as the format of the "
            "answer that it has to read.",
            "Remove the parameter.",
            stops_accepted=False,
        ),
        "unknown_label": CheckCode(
            "`passing_labels` has a label that the judge cannot give, since it is not in `labels`. No sample could "
            "ever pass with it.",
            "Use only values of `labels`.",
            stops_accepted=False,
        ),
        "not_for_logprobs": CheckCode(
            "The operator has this judge read by log-probabilities (`scoring: logprobs` of its entry in `models`): its "
            "grade is how likely each label is as the first token of its answer. So labels must begin differently, a "
            "score's range must be digits, and a guard's `pass_threshold` must be below the highest grade, which is "
            "never reached.",
            "Change the labels, the range or the threshold as the message says, or let the operator remove `scoring`.",
            stops_accepted=False,
        ),
        "invalid_grader_name": CheckCode(
            "The name of a part of a multi grader is used as a variable in `calculate_output`; this one is not a valid "
            "name there, or is reserved.",
            "Rename the part: letters, digits and `_`, not starting with a digit.",
            stops_accepted=False,
        ),
        "invalid_expression": CheckCode(
            "`calculate_output` of a multi grader cannot be parsed, or uses a name that is not one of its parts.",
            "Use `+ - * / ^`, parentheses, numbers, the names of the parts, and `min`, `max`, `abs`, `floor`, `ceil`, "
            "`exp`, `sqrt` and `log`.",
            stops_accepted=False,
        ),
        "invalid_line": CheckCode(
            "A line of the file that `agent-rft grade` should grade is not an object with `sample` and `item`.",
            'Write `{"sample": ..., "item": {...}}` on each line; `sample` may be the text of the answer.',
            stops_accepted=False,
        ),
    },
    "Tools, graders and sessions": {
        "invalid_endpoint": CheckCode(
            "A URL or a header of a tool, a grader, a session or a judge cannot be used: it is not `http` or `https`, "
            "has no host, or a header has characters that HTTP does not allow, often a line end after a token.",
            "Fix the URL or the headers of this entry.",
            stops_accepted=False,
        ),
        "invalid_signing_secret": CheckCode(
            "A `signing_secret` is not in the form of Standard Webhooks, so your server's library could not read it.",
            "Make one by `echo whsec_$(openssl rand -base64 32)` and pass it as `${NAME}` from the environment.",
            stops_accepted=True,
        ),
        "forbidden_address": CheckCode(
            "The host has an address that jobs may not call: this machine, a private network or a cloud's metadata "
            "service. Otherwise anybody who may create jobs could reach what is behind the firewall. Names are "
            "resolved at each connection, so a name that changes its address does not help. Commands that start their "
            "own Ray cluster may call the loopback and private addresses in the job file, unless `agent-rft.yaml` "
            "sets `allowed_networks`.",
            "Let the operator add the entry that the message names, or use a public address. For a tool at port 8000 "
            'of your own machine: `allowed_networks: ["127.0.0.1:8000"]` in `agent-rft.yaml`.',
            stops_accepted=True,
        ),
        "endpoint_refused": CheckCode(
            "The endpoint answered 401, or 403 before it has answered anything else. That is not retried and ends the "
            "job: a wrong token fails every call. The message has the endpoint's own reason. A later 403 is an error "
            "of one call; if more than half of the latest 64 answers are 403, it ends the job, too.",
            "Put the token into its `headers`, as `${NAME}` from the environment; of a judge, into its entry in the "
            "operator's `models`.",
            stops_accepted=True,
        ),
        "wrong_path": CheckCode(
            "The server answers, but probably not at this path: it redirects, does not accept POST, or answers exactly "
            "as it does to a path that certainly does not exist.",
            "Fix the path of the URL; redirects are not followed.",
            stops_accepted=True,
        ),
        "unanswered_trial_call": CheckCode(
            "A warning. The check calls each endpoint once and waits at most ten minutes. The endpoint accepted this "
            "call and did not answer, but its `timeout_s` is longer, so it may still be working: the check cannot tell "
            "a long call from a server that hangs.",
            "Read the endpoint's log. If it should answer the example call soon, look for what it waits for; if such "
            "a call takes long, nothing is wrong.",
            stops_accepted=False,
        ),
        "no_json_schema": CheckCode(
            "A warning. The judge's server refused the response format `json_schema`, so it is asked for "
            "`json_object` instead, with the schema in the system message. Its answers are read equally strictly, but "
            "it may more often have to be asked again.",
            "Set `response_format: json_object` in the judge's entry of `models`, which saves a request.",
            stops_accepted=False,
        ),
        "short_rollout_timeout": CheckCode(
            "A warning. A call may take longer than the rollout that waits for it. Tool calls count as the time of a "
            "rollout (`limits.rollout_timeout_s`); session starts and grades count as waiting, whose limit is six "
            "times as long. A rollout above its limit is discarded although its call was answered, and the work of "
            "that call is lost.",
            "Raise `limits.rollout_timeout_s` above the longest call, with time for the model and the other calls of "
            "a rollout; or lower the endpoint's `timeout_s`, so that a call that hangs is given up earlier.",
            stops_accepted=False,
        ),
        "tool_failed": CheckCode(
            "A tool did not answer the one call that the check makes with example values, or the answer is not what "
            "the contract says, or a proxy before it refuses the size of a call (413, 414, 431). In a run such a "
            "rollout is discarded, not graded as wrong.",
            'Make it answer POST with `{"output": "..."}`, also for values that make no sense; an answer with a status '
            "of 400 to 499 is an error that the model sees.",
            stops_accepted=True,
        ),
        "grader_failed": CheckCode(
            "The grader gave no finite number for an example. A grader that fails for some samples would lose them, "
            "and the job would train on the rest only.",
            'Make it give a number for any sample, also for an empty one: `{"score": number}` for an endpoint.',
            stops_accepted=True,
        ),
        "session_failed": CheckCode(
            "The server of sessions did not start or did not end one in the check. Rollouts need a session before "
            "their first tool call; one that does not end keeps resources of your server.",
            "Make both URLs answer any JSON with status 200.",
            stops_accepted=True,
        ),
    },
}

GRADE_CODES: dict[str, dict[str, ProblemCode]] = {
    "Failed grades": {
        "formula_parse_error": ProblemCode(
            "`calculate_output` has no finite value for the scores of the parts, such as a division by zero or the "
            "root of a negative number. The rollout is discarded.",
            "Change the expression so that it has a value for all scores that the parts can give, with `max(x, 0.01)` "
            "for example.",
        ),
        "invalid_variable_error": ProblemCode(
            "A template's path has no value: in the row it is a mistake of the data; in the sample the model wrote "
            "something else than the grader expects, such as no JSON.",
            "Fix the row or the path. If the model may write anything, set `invalid_grade` of a multi grader, which "
            "grades such samples instead of discarding them.",
        ),
        "python_grader_runtime_error": ProblemCode(
            "The program of a python grader raised an error, returned no number, or used too much memory. The details "
            "have its traceback.",
            "Try it with `agent-rft grade`, or with the API's `graders/run`, on the same sample.",
        ),
        "python_grader_server_error": ProblemCode(
            "The program of a python grader did not end in its `timeout_s`, or its sandbox did not start or was lost.",
            "Raise `timeout_s` or make it faster; if no grade works, look at the node's log.",
        ),
        "model_grader_server_error": ProblemCode(
            "The judge or the embedding model did not answer after all retries, or not in the form of OpenAI's API.",
            "Check the server of that model and its entry in the operator's configuration, below `models`.",
        ),
        "model_grader_refusal_error": ProblemCode(
            "The judge refused to grade the sample, or its content filter did.",
            "Read the sample in the traces: often the task or the prompt of the judge sounds harmful.",
        ),
        "model_grader_parse_error": ProblemCode(
            "The judge answered, but not with a grade, each time it was asked. Its last answer is in the message.",
            "Use a judge that follows a JSON schema, say in the prompt what to answer, and leave it enough tokens.",
        ),
    },
}
