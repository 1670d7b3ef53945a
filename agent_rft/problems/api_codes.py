"""Problem codes in error responses of the API."""

from __future__ import annotations

from agent_rft.problems.problem_code import ProblemCode

API_CODES: dict[str, dict[str, ProblemCode]] = {
    "API: key and limits": {
        "missing_api_key": ProblemCode(
            "The request has no key.",
            "Send `Authorization: Bearer sk-rft-...`. A server prints a key at its first start; `agent-rft keys "
            "create` creates others.",
        ),
        "invalid_api_key": ProblemCode(
            "The key is unknown to the server, was revoked or has expired. Keys belong to one server's database.",
            "Check which server the client calls (`base_url`), and create a key there with `agent-rft keys create`.",
        ),
        "console_session_ended": ProblemCode(
            "The console session has ended. A session lasts 24 hours, or less if its key expires or is revoked "
            "earlier.",
            "Log in again with a valid key.",
        ),
        "cross_origin": ProblemCode(
            "A web page from another host sent a request with the console's cookie. The server refuses such "
            "requests unless they only read data.",
            "Open the console at the server's URL. A proxy in front of the server must forward `Host` unchanged.",
        ),
        "insufficient_scope": ProblemCode(
            "The key is valid, but its scope does not allow this request. `read` allows reading. `write` also allows "
            "creating jobs, calling models and changing objects that the same key created. `admin` allows everything.",
            "Use a key with the scope that the message names.",
        ),
        "too_many_failed_logins": ProblemCode(
            "The client's IP address, or all addresses together, sent too many requests with a wrong key within a "
            "minute. A valid key is never refused for this reason.",
            "Fix the key of the client that sends these requests. Often its key was revoked or has expired.",
        ),
        "rate_limit_exceeded": ProblemCode(
            "The key exceeded its limit of requests per minute. The server's default limit applies to keys that were "
            "created without a limit.",
            "Wait for the number of seconds in `Retry-After`, as OpenAI's client does automatically, or ask for a "
            "higher limit.",
        ),
        "too_many_uploads": ProblemCode(
            "Too many uploads are in progress. The operator sets the limit with `limits.max_uploads`, and one API key "
            "can use half of the limit. The limit keeps the server from running out of memory.",
            "Try again in a moment.",
        ),
        "too_many_checks": ProblemCode(
            "Too many job checks are in progress. At most two checks run at the same time, and at most one per API "
            "key. Each check reads complete files in a separate process.",
            "Try again in a moment.",
        ),
        "database_unavailable": ProblemCode(
            "The server cannot reach its database, or the database is busy.",
            "Try again after the number of seconds in `Retry-After`. `/health/ready` shows whether the server can "
            "reach the database again; the server's log has the reason.",
        ),
        "too_many_in_progress": ProblemCode(
            "Too many requests are in progress, or their bodies are too large in total. The server accepts at most "
            "`limits.max_connections` requests at a time. Their bodies can have 128 times `limits.max_body_bytes` in "
            "total. One key can use half of each limit. Streams of job events have separate limits: 512 in total, and "
            "16 per key.",
            "Try again in a moment, as OpenAI's client does automatically; send fewer requests at the same time.",
        ),
        "too_many_connections": ProblemCode(
            "The operator's limit of open connections is reached (`limits.max_connections`; one IP address may use "
            "half of this limit). Behind a proxy, all clients have the proxy's address.",
            "Use one HTTP client for many requests, because it reuses its connections. The operator can raise the "
            "limit.",
        ),
        "headers_too_large": ProblemCode(
            "The URL and the headers of a request are larger than 64 KiB, or there are more than 100 headers.",
            "Send long values in the body.",
        ),
        "invalid_http": ProblemCode(
            "The server received something other than HTTP/1.1. Often the cause is a client that uses TLS: only a "
            "proxy in front of the server supports TLS. Another cause is a client that sends many requests without "
            "waiting for the responses.",
            "Check whether the URL starts with http or https.",
        ),
        "unexpected_body": ProblemCode(
            "The request has a body, but requests with the method GET, HEAD, DELETE or OPTIONS must not have a body.",
            "Send the request without a body.",
        ),
        "too_many_trials": ProblemCode(
            "The operator's limit of trial calls of graders and tools is reached (`limits.max_trial_calls`; one key "
            "may use three quarters of this limit). No slot became free within two minutes, or too many calls are "
            "already waiting.",
            "Try again in a moment, with fewer samples (`n`), or with fewer grader parts that start a process or call "
            "a model.",
        ),
    },
    "API: request format": {
        "unknown_url": ProblemCode(
            "The route does not exist. OpenAI's API has more routes than this server.",
            "Check the path, which starts with `/v1`. The API reference lists all routes.",
        ),
        "method_not_allowed": ProblemCode(
            "The route does not support this method.",
            "Use a method that the API reference lists for the route.",
        ),
        "invalid_url": ProblemCode(
            "The URL contains a null character.",
            "Remove the character.",
        ),
        "unsupported_media_type": ProblemCode(
            "The body is compressed, or is not in the format that the route requires.",
            "Send JSON with `Content-Type: application/json`, and files as `multipart/form-data`. Do not set "
            "`Content-Encoding`.",
        ),
        "invalid_json": ProblemCode(
            "The body is not valid JSON, has more than 25,000 values or too many nested levels, or contains a number "
            "or character that cannot be stored.",
            "Send one JSON object. If it is too large, split it into several requests.",
        ),
        "invalid_multipart": ProblemCode(
            "The upload is not a complete multipart form, or contains a field twice.",
            "Let an HTTP library create the form. If the form is truncated, the usual cause is a proxy that limits the "
            "size of bodies.",
        ),
        "too_large": ProblemCode(
            "The body exceeds the operator's limit (`limits.max_body_bytes`), or a hyperparameter is larger than any "
            "reasonable value.",
            "Send a smaller body. If a hyperparameter is too large, send a smaller number or `auto`.",
        ),
        "timeout": ProblemCode(
            "The body of the request, or the model's answer, did not arrive in time.",
            "Try again. On a slow network, split the file; for a slow model, request fewer tokens.",
        ),
        "missing_required_parameter": ProblemCode(
            "A required field, named in `param`, is missing.",
            "Add the field.",
        ),
        "unknown_parameter": ProblemCode(
            "The server does not support the field that `param` names. The request is refused, because the result "
            "would not be as requested if the server ignored the field.",
            "Remove the field, or check its spelling.",
        ),
        "invalid_value": ProblemCode(
            "The value of the field in `param` is invalid.",
            "Correct the value as the message describes.",
        ),
        "invalid_request": ProblemCode(
            "The request is well formed, but cannot be executed. The message has the reason.",
            "Follow the message.",
        ),
        "invalid_type": ProblemCode(
            "A value has the wrong type. Either the body is not an object, or a hyperparameter is a boolean, which "
            "Python would treat as 1 or 0.",
            "Send a JSON object as the body, and use a number or `auto` for each hyperparameter.",
        ),
        "unknown_key": ProblemCode(
            "In the older format of supervised jobs, the `hyperparameters` at the top level support only three keys.",
            "Remove the key, or set it in `method.supervised.hyperparameters`.",
        ),
        "duplicate_hyperparameters": ProblemCode(
            "`hyperparameters` are set both at the top level, which is the older format, and in `method`. One of "
            "these settings would be ignored.",
            "Set all hyperparameters in `method`.",
        ),
    },
    "API: files, jobs and models": {
        "not_found": ProblemCode(
            "The server has no object with this id, or the object was deleted or has expired.",
            "List the objects to find the right id.",
        ),
        "file_not_found": ProblemCode(
            "The job refers to a file that does not exist on this server. File ids from other servers are not valid "
            "here.",
            "Upload the file first, with the purpose `fine-tune`.",
        ),
        "invalid_purpose": ProblemCode(
            "The file was uploaded with another purpose, but jobs only read files with the purpose `fine-tune`.",
            "Upload the file with the purpose `fine-tune`.",
        ),
        "invalid_filename": ProblemCode(
            "The name of the upload is an absolute path, or contains `..` or control characters. The server never "
            "uses it as a path, but clients that download the file might.",
            "Use a plain file name.",
        ),
        "file_too_large": ProblemCode(
            "The file exceeds the operator's limit for the size of a file.",
            "Split the file, or ask the operator to raise the limit.",
        ),
        "no_space": ProblemCode(
            "The server's disk is full.",
            "Notify the operator. Deleting files on the server frees space immediately.",
        ),
        "not_ready": ProblemCode(
            "The server is still reading the job's rollouts, which takes longer for old or large runs. Or too many "
            "text searches or comparisons are running: one API key may run two searches and one comparison at a time.",
            "Send the request again after the number of seconds in `Retry-After`.",
        ),
        "invalid_job_state": ProblemCode(
            "The job's state does not allow this action. For example, a running job cannot be resumed, and a job that "
            "has ended cannot be cancelled.",
            "Check the job's status first.",
        ),
        "idempotency_key_reused": ProblemCode(
            "The `Idempotency-Key` was sent before with another body. A key identifies one job, so that a repeated "
            "request does not start a second job.",
            "Use a new idempotency key for each new job.",
        ),
        "model_not_found": ProblemCode(
            "The server has no model with this name that can be called or trained.",
            "Use an id from `agent-rft models list`. The operator adds base models under `aliases` in the "
            "configuration.",
        ),
        "model_not_deletable": ProblemCode(
            "The model is a base model of the server. Only tuned models and checkpoints can be deleted through the "
            "API.",
            "Ask the operator to remove the model from `aliases`.",
        ),
    },
    "API: model answers": {
        "model_damaged": ProblemCode(
            "The model's folder has no readable tokenizer, template or adapter, or its adapter belongs to another "
            "base model. Other models, including models on the same engine, are not affected.",
            "The server's log names the file. Restore the file, or delete the model. An adapter needs its base model "
            "at the path in its `adapter_config.json`.",
        ),
        "model_unavailable": ProblemCode(
            "The model has no engine at the moment: the engine is starting, was stopped or failed, or the cluster has "
            "no free resources for it.",
            "Try again after the number of seconds in `Retry-After`; the first call to a model starts its engine.",
        ),
        "context_length_exceeded": ProblemCode(
            "The messages and tools of the request exceed the model's context length.",
            "Send fewer or shorter messages.",
        ),
        "invalid_encrypted_content": ProblemCode(
            "A reasoning item was not created by this server, belongs to another API key, or was modified. It is "
            "therefore not sent to the model.",
            "Send reasoning items exactly as this server returned them, or omit them.",
        ),
        "unsupported_endpoint": ProblemCode(
            "The server has no embedding models.",
            "Send the request to a server that has embedding models.",
        ),
        "invalid_grader": ProblemCode(
            "The `grader` of a best-of-n request is invalid.",
            "Write the grader as in a job. `POST /v1/fine_tuning/alpha/graders/validate` checks a grader.",
        ),
        "grader_refused": ProblemCode(
            "The endpoint of the request's grader answered 401 or 403.",
            "Put the endpoint's token into the grader's `headers`.",
        ),
    },
}
