"""The codes in error responses of the API, apart from those of a job's form, which are the same as of `check`."""

from __future__ import annotations

from agent_rft.problems.code import ProblemCode

API_CODES: dict[str, dict[str, ProblemCode]] = {
    "API: key and limits": {
        "missing_api_key": ProblemCode(
            "The request has no key.",
            "Send `Authorization: Bearer sk-rft-...`. The first start of a server prints a key; `agent-rft keys "
            "create` makes others.",
        ),
        "invalid_api_key": ProblemCode(
            "The server does not know the key, or it was revoked or has expired. Keys belong to one server's database.",
            "Check which server the client calls (`base_url`), and make a key there with `agent-rft keys create`.",
        ),
        "session_ended": ProblemCode(
            "The console's session is over: it lasts 24 hours, and no longer than its key.",
            "Log in again, with a key that works.",
        ),
        "foreign_origin": ProblemCode(
            "A change came with the console's cookie from a page of another host, so it was refused.",
            "Use the console at the server's own address. A proxy in front of it must pass on `Host` as it is.",
        ),
        "insufficient_scope": ProblemCode(
            "The key is valid, but may not do this: `read` may look, `write` may create jobs and call models and may "
            "change what the same key made, `admin` may do everything.",
            "Use a key with the scope in the message.",
        ),
        "too_many_failed_logins": ProblemCode(
            "The client's address, or all addresses together, sent too many requests with a wrong key within a minute. "
            "A right key is never refused for that.",
            "Correct the key of the client that sends them; it often is one whose key was revoked or has expired.",
        ),
        "rate_limit_exceeded": ProblemCode(
            "The key made more requests per minute than it may. The limit is that of the key, else that of the server.",
            "Wait for the seconds in `Retry-After`, as OpenAI's client does by itself, or ask for a higher limit.",
        ),
        "too_many_uploads": ProblemCode(
            "As many uploads are in progress as the operator allows at a time (`limits.max_uploads`), half of them for "
            "one API key, which bounds the server's memory.",
            "Try again in a moment.",
        ),
        "too_many_checks": ProblemCode(
            "Two checks of requests for jobs are in progress, or one of the same API key: each reads whole files in a "
            "process of its own.",
            "Try again in a moment.",
        ),
        "database_unavailable": ProblemCode(
            "The server cannot reach its database, or the database is busy.",
            "Try again after the seconds in `Retry-After`. `/health/ready` shows whether the database is back; the "
            "server's log has the reason.",
        ),
        "too_many_in_progress": ProblemCode(
            "The key has as many requests, or bytes of bodies, in progress as its share allows, which is half of what "
            "the server holds (`limits.max_connections`, and 128 bodies of `limits.max_body_bytes`).",
            "Try again in a moment, as OpenAI's client does by itself; send fewer requests at the same time.",
        ),
        "too_many_connections": ProblemCode(
            "As many connections are open as the operator allows (`limits.max_connections`), half of them for one "
            "address. Behind a proxy all clients have its address.",
            "Use one HTTP client for many requests, since it keeps its connections; the operator can raise the limit.",
        ),
        "headers_too_large": ProblemCode(
            "The URL and the headers of a request are over 64 KiB, or there are more than 100 headers.",
            "Send long values in the body.",
        ),
        "invalid_http": ProblemCode(
            "What the server received is not HTTP/1.1: often TLS, which only a proxy in front of the server speaks, or "
            "many requests that did not wait for an answer.",
            "Check whether the URL starts with http or https.",
        ),
        "unexpected_body": ProblemCode(
            "The request has a body, and its method has none here: GET, HEAD, DELETE or OPTIONS.",
            "Send it without a body.",
        ),
        "too_many_trials": ProblemCode(
            "As many graders and tools are being tried as the operator allows at a time (`limits.max_trial_calls`), "
            "and no slot became free in two minutes, or too many wait already. A key has three quarters at most.",
            "Try again in a moment, with fewer samples (`n`) or fewer parts that start a process or ask a model.",
        ),
    },
    "API: form of a request": {
        "unknown_url": ProblemCode(
            "There is no such route. OpenAI's API has more routes than this server.",
            "Check the path, which starts with `/v1`; the reference of the API lists all routes.",
        ),
        "method_not_allowed": ProblemCode(
            "The route exists, but not with this method.",
            "Use a method of the reference.",
        ),
        "invalid_url": ProblemCode(
            "The URL has a null character.",
            "Remove it.",
        ),
        "unsupported_media_type": ProblemCode(
            "The body is not in the form that the route reads, or it is compressed.",
            "Send JSON with `Content-Type: application/json`, files as `multipart/form-data`, without "
            "`Content-Encoding`.",
        ),
        "invalid_json": ProblemCode(
            "The body is not valid JSON, has more than 25,000 values, is nested too deeply, or has a number or a "
            "character that cannot be stored.",
            "Send one JSON object; split a large one.",
        ),
        "invalid_form": ProblemCode(
            "The upload is not a complete multipart form, or has a field two times.",
            "Let an HTTP library write the form; a truncated one often comes from a proxy with a limit on bodies.",
        ),
        "too_large": ProblemCode(
            "The body is over the operator's limit (`limits.max_body_bytes`), or a hyperparameter is larger than any "
            "that is meant.",
            "Send less at a time, or a smaller number or `auto`.",
        ),
        "timeout": ProblemCode(
            "The body did not arrive in time, or the model did not answer in time.",
            "Try again; for a slow network, split the file, and for a slow model ask for fewer tokens.",
        ),
        "missing_required_parameter": ProblemCode(
            "A required field is missing; `param` names it.",
            "Add it.",
        ),
        "unknown_parameter": ProblemCode(
            "The server does not know a field; `param` names it. It is refused because ignoring it would do something "
            "else than was asked for.",
            "Remove the field, or check its spelling.",
        ),
        "invalid_value": ProblemCode(
            "The value of the field in `param` is not valid.",
            "Correct it as the message says.",
        ),
        "invalid_request": ProblemCode(
            "The request is well formed, but cannot be done; the message says why.",
            "Follow the message.",
        ),
        "invalid_type": ProblemCode(
            "A value has the wrong type: the body is not an object, or a hyperparameter is a boolean, which Python "
            "would take for 1 or 0.",
            "Give a number or `auto`.",
        ),
        "unknown_key": ProblemCode(
            "The older form of a supervised job, with `hyperparameters` at the top, has three of them only.",
            "Remove the key, or give it in `method.supervised.hyperparameters`.",
        ),
        "two_places": ProblemCode(
            "`hyperparameters` are given both at the top, the older form, and in `method`: one of them would be "
            "ignored.",
            "Give all of them in `method`.",
        ),
    },
    "API: files, jobs and models": {
        "not_found": ProblemCode(
            "There is no object with this id on this server, or it was deleted or has expired.",
            "List the objects to find the right id.",
        ),
        "file_not_found": ProblemCode(
            "The job names a file that this server does not have. Ids of another server do not work here.",
            "Upload it first, with the purpose `fine-tune`.",
        ),
        "invalid_purpose": ProblemCode(
            "The file was uploaded for something else, and a job reads only files for training.",
            "Upload it with the purpose `fine-tune`.",
        ),
        "invalid_filename": ProblemCode(
            "The name of the upload is an absolute path, has `..` or control characters. The server never uses it as a "
            "path, but clients that download the file may.",
            "Use a plain name.",
        ),
        "file_too_large": ProblemCode(
            "The file is over the operator's limit of a file.",
            "Split it, or ask the operator to raise the limit.",
        ),
        "no_space": ProblemCode(
            "The server's disk is full.",
            "Tell the operator; deleting files of the server helps at once.",
        ),
        "not_ready": ProblemCode(
            "The server is still reading the rollouts of the job, which takes longer for old or large runs.",
            "Send the request again after the seconds in `Retry-After`.",
        ),
        "invalid_job_state": ProblemCode(
            "The job cannot do this in its state, such as resuming a job that is running or cancelling one that ended.",
            "Look at its status first.",
        ),
        "idempotency_key_reused": ProblemCode(
            "The `Idempotency-Key` was sent before with another body. A key stands for one job, so that a repeated "
            "request does not start a second one.",
            "Use a new key for a new job.",
        ),
        "model_not_found": ProblemCode(
            "The server has no model of this name, neither to call nor to train.",
            "Use an id of `agent-rft models list`; the operator adds base models below `aliases`.",
        ),
        "model_not_deletable": ProblemCode(
            "It is a base model of the server. Only tuned models and checkpoints can be deleted through the API.",
            "Let the operator remove it from `aliases`.",
        ),
    },
    "API: answers of models": {
        "model_damaged": ProblemCode(
            "The model's folder has no readable tokenizer, template or adapter, or its adapter is one of another base. "
            "Other models, also of the same engine, are served as before.",
            "The server's log names the file; restore it, or delete the model. An adapter needs its base where its "
            "`adapter_config.json` says.",
        ),
        "model_unavailable": ProblemCode(
            "The model has no engine right now: it starts, was stopped, or failed, or the cluster has no room for it.",
            "Try again after the seconds in `Retry-After`; the first call of a model starts its engine.",
        ),
        "context_length_exceeded": ProblemCode(
            "Messages and tools of the request take more tokens than the model's context.",
            "Send fewer or shorter messages.",
        ),
        "invalid_encrypted_content": ProblemCode(
            "A reasoning item was not made by this server, was made for another API key, or was changed, so it is not "
            "shown to the model.",
            "Send reasoning items exactly as this server returned them, or leave them out.",
        ),
        "unsupported_endpoint": ProblemCode(
            "The server has no embedding models.",
            "Send the request to a server of embeddings.",
        ),
        "invalid_grader": ProblemCode(
            "The `grader` of a request for the best of several answers is not valid.",
            "Write it as in a job; `POST /v1/fine_tuning/alpha/graders/validate` checks one.",
        ),
        "grader_refused": ProblemCode(
            "The endpoint of the request's grader answered 401 or 403.",
            "Put its token into the grader's `headers`.",
        ),
    },
}
