"""Problem codes of a job before it starts: its file, rows, model and placement on the cluster."""

from __future__ import annotations

from agent_rft.problems.problem_code import CheckCode

JOB_CODES: dict[str, dict[str, CheckCode]] = {
    "Configuration files": {
        "unreadable_<file>": CheckCode(
            "A file is missing, this user has no permission to read it, or it is not UTF-8 text. The last part of the "
            "problem code names the file: `job`, `template` (the job's chat template), `config` (the operator's "
            "configuration), `nodes` (the list of nodes) or `grader`. A chat template can have at most 64 kB.",
            "Check the path in the message. The configuration is the file given by `--config`, otherwise by "
            "`AGENT_RFT_CONFIG`, otherwise `agent-rft.yaml` in the current folder.",
            stops_accepted_jobs=True,
        ),
        "<file>_syntax": CheckCode(
            "The file is not valid YAML or, if its name ends in `.json`, not valid JSON. The rest of the file is not "
            "checked. The message does not show the line, because the line may contain a secret.",
            "Check the line and the line before it. The usual cause is incorrect indentation, a tab, an unclosed "
            "quote, or a colon in an unquoted string.",
            stops_accepted_jobs=True,
        ),
        "job_shape": CheckCode(
            "The job's file is a list or a single string, not a mapping of keys to values.",
            "Write `key: value` lines at the top level, at least for `model`, `training_file` and `method`.",
            stops_accepted_jobs=True,
        ),
        "config_shape": CheckCode(
            "The operator's configuration is a list or a single string, not a mapping of keys to values. An empty "
            "file is valid: it allows nothing beyond the defaults.",
            "Write `key: value` lines such as `allowed_networks: [10.0.0.0/8]`.",
            stops_accepted_jobs=True,
        ),
        "grader_shape": CheckCode(
            "The grader file of `agent-rft grade` is a list or a single string, not a mapping.",
            "Write the grader as in the job, with its `type`; or write a mapping with `grader` and `guards`, "
            "as in `method.reinforcement`.",
            stops_accepted_jobs=True,
        ),
        "duplicate_key": CheckCode(
            "A mapping contains the same key twice. YAML would silently use the last entry, so editing the first "
            "entry would have no effect.",
            "Keep only one of the entries.",
            stops_accepted_jobs=True,
        ),
        "missing_variable": CheckCode(
            "The file uses the environment variable `${NAME}`, which is not set for the process that reads the file.",
            "Run `export NAME=...` before the command. For a server, set the variable where the server is started.",
            stops_accepted_jobs=True,
        ),
        "invalid_missing": CheckCode(
            "A required key or item is missing.",
            "Add the key or item that the message names. If the file has a key with a similar name, that key is "
            "probably misspelled.",
            stops_accepted_jobs=True,
        ),
        "invalid_extra_forbidden": CheckCode(
            "The setting does not exist here. Unknown keys are refused, because a misspelled setting would otherwise "
            "be ignored and the job would train for hours with the default.",
            "Follow the message's suggestion, which is a similar key or the right place of this key. `agent-rft "
            "explain NAME` shows where a setting belongs.",
            stops_accepted_jobs=True,
        ),
        "invalid_union_tag_not_found": CheckCode(
            "This mapping needs a `type`, as each grader does. Without a `type`, its other keys cannot be checked.",
            "Add `type: ...`.",
            stops_accepted_jobs=True,
        ),
        "invalid_union_tag_invalid": CheckCode(
            "`type` has an unknown value.",
            "Use one of the types that the message lists.",
            stops_accepted_jobs=True,
        ),
        "invalid_duplicate_tracker": CheckCode(
            "`integrations` lists a tracker more than once. A job has one run in each tracker, so both entries would "
            "write to the same run.",
            "Keep one entry per type.",
            stops_accepted_jobs=True,
        ),
        "invalid_value_error": CheckCode(
            "The value has the right type, but violates a rule of this setting or conflicts with another setting.",
            "Change one of the settings in the message.",
            stops_accepted_jobs=True,
        ),
        "invalid_<type>": CheckCode(
            "The value has the wrong type or is outside the bounds of the setting. The last part of the code is the "
            "name of the rule in pydantic, the validation library, such as `invalid_int_parsing` or "
            "`invalid_greater_than`.",
            "Correct the value as the message describes. `agent-rft explain SETTING` shows type, bounds and default.",
            stops_accepted_jobs=True,
        ),
        "truncated_sampling": CheckCode(
            "`top_p`, `top_k` and `min_p` cut off part of the distribution that the engine samples from. The learner "
            "computes log-probabilities of the full distribution, so the importance ratios would be wrong.",
            "Remove the setting. To sample less randomly, lower `temperature`; the learner's log-probabilities take "
            "the temperature into account.",
            stops_accepted_jobs=True,
        ),
        "unknown_parser": CheckCode(
            "The engine, vLLM, has no tool parser with this name. The parser converts the model's text to tool calls. "
            "Without the right parser, every call remains plain text.",
            "Use `auto`, which finds a parser for the template's call syntax, or one of the names in the message.",
            stops_accepted_jobs=True,
        ),
    },
    "Rows": {
        "tools_not_in_prompt": CheckCode(
            "The chat template leaves the tools of a row out of the prompt, which is common for models that do not "
            "support tools. The model would not see which tools it can call, so it would be trained without tool "
            "calls.",
            "Set `model_options.chat_template` to a template that shows the tools. If the model needs no tool "
            "descriptions, set `tools_in_prompt: false`.",
            stops_accepted_jobs=False,
        ),
        "message_not_in_prompt": CheckCode(
            "The chat template omits a message of a row, as some templates do with the role `system`. A developer "
            "message that the template omits becomes a system message.",
            "Use a role that the template supports, such as `user`, or another template.",
            stops_accepted_jobs=False,
        ),
        "not_gradable": CheckCode(
            "The model's rollouts cannot be graded, because the job is supervised and has no grader.",
            "Use a job whose method is `reinforcement`.",
            stops_accepted_jobs=True,
        ),
        "missing_file": CheckCode(
            "The file does not exist. Paths in a job are relative to the job's file, not to the current folder.",
            "Fix the path. For `agent-rft eval --file`, add the file to the job, or name one of the job's files.",
            stops_accepted_jobs=True,
        ),
        "early_stop_without_validation": CheckCode(
            "A job stops early once the mean reward over its validation file stops rising, but this job has no "
            "validation file. The reward of the training rows cannot be used instead: each step has different rows, so "
            "the rewards of two steps cannot be compared. The reward also rises if the model memorizes training rows.",
            "Set `validation_file` to rows that are not in the training file, or remove `early_stop`.",
            stops_accepted_jobs=False,
        ),
        "unreadable_file": CheckCode(
            "The file exists, but cannot be read: either this user has no permission to read it, or it is not "
            "UTF-8 text.",
            "Make the file readable, or save it as UTF-8.",
            stops_accepted_jobs=True,
        ),
        "empty_file": CheckCode(
            "The file has no rows. The API also rejects an upload of 0 bytes with this code.",
            "Write one JSON object per line.",
            stops_accepted_jobs=True,
        ),
        "json_array": CheckCode(
            "The file begins with `[`, so it is one JSON array, as written by `json.dump` of a list. Datasets are "
            "JSON Lines: one complete object per line, with nothing around or between the lines.",
            "Write each element on a separate line, for example with `jq -c '.[]' rows.json > rows.jsonl`. In Python, "
            "write `json.dumps(row)` and a line break for each row.",
            stops_accepted_jobs=False,
        ),
        "broken_json": CheckCode(
            "A line is not valid JSON. `NaN`, `Infinity` and lone surrogates are also refused, because graders and "
            "tools could not receive them.",
            "Write one complete JSON object per line, without line breaks inside.",
            stops_accepted_jobs=False,
        ),
        "invalid_row": CheckCode(
            "A line is valid JSON, but not a row in OpenAI's chat format. A row of a reinforcement job must end with "
            "a user message, which the model answers. A row of a supervised job must end with an assistant message, "
            "which the model learns.",
            "Fix the problem that the message describes in this row. Check whether the program that wrote the row "
            "made the same error in other rows.",
            stops_accepted_jobs=False,
        ),
        "duplicate_row_key": CheckCode(
            "An object in a row contains the same key twice. Only the last value counts, so a change of the first "
            "value has no effect.",
            "Keep only one of the values. Often the cause is a program that builds JSON by joining strings, or a key "
            "that was added by hand.",
            stops_accepted_jobs=False,
            is_warning=True,
        ),
        "unanswered_call": CheckCode(
            "In a supervised row, a call has no tool message with its result, or a result has no call. The API refuses "
            "such a conversation, so training on it would be useless. Only the calls of the last message may lack "
            "results.",
            "Put one tool message per call directly after the message with the calls. Its `tool_call_id` is the id of "
            "the call.",
            stops_accepted_jobs=False,
        ),
        "call_without_tools": CheckCode(
            "A supervised row trains a tool call, but has no `tools`. In a request without tools, a served "
            "model makes no calls, so the model would never use the trained call. The call's arguments also cannot be "
            "checked without the tool's schema.",
            "Add the schemas of the tools to the row's `tools`, in the same format as in a request.",
            stops_accepted_jobs=False,
        ),
        "nothing_trained": CheckCode(
            "All assistant messages of a supervised row have the weight 0, so no token of the row is trained.",
            "Set the weight of the messages to learn to 1, or remove the row.",
            stops_accepted_jobs=False,
        ),
        "unknown_tool": CheckCode(
            "A supervised row trains a call of a tool that is not in the row's `tools`. The model would learn to call "
            "tools that it was not offered. Such a call is useful only in rows that show how to recover from it.",
            "Add the tool to the row, correct its name, or set the `weight` of the message to 0.",
            stops_accepted_jobs=False,
            is_warning=True,
        ),
        "invalid_arguments": CheckCode(
            "A supervised row trains a call whose arguments are not a JSON object or violate the schema of the tool. "
            "The model would learn to write such arguments. Such a call is useful only in rows that show how to "
            "recover from it.",
            "Correct the arguments or the schema, or set the `weight` of the message to 0.",
            stops_accepted_jobs=False,
            is_warning=True,
        ),
        "repeated_assistant": CheckCode(
            "A supervised row trains an assistant message that directly follows another one. The model would learn to "
            "continue after the end of its turn, where it usually waits for a user.",
            "Merge the messages: text and calls may be in one message.",
            stops_accepted_jobs=False,
            is_warning=True,
        ),
        "invalid_weight": CheckCode(
            "The `weight` of an assistant message is neither 0 nor 1. Any other weight, such as 0.5 or the string "
            '`"0"`, counts as 1, so the model is trained on the message. Only `false` counts as 0.',
            "Write the number 1 to train on the message, or 0 to exclude the message from training.",
            stops_accepted_jobs=False,
            is_warning=True,
        ),
        "invalid_n_examples": CheckCode(
            "The number of rows in a file is outside the operator's limits, such as `jobs.min_training_rows`. If there "
            "are too few rows, the model memorizes them. Too many rows are usually an error.",
            "Add or remove rows, or ask the operator to change the limit.",
            stops_accepted_jobs=False,
        ),
        "invalid_schema": CheckCode(
            "A JSON schema of a tool's `parameters` or of `response_format` is invalid (draft 2020-12), or contains a "
            "reference to another document or a cycle of references. Calls and answers could not be validated against "
            "it.",
            "Fix the schema at the place that the message names. Definitions belong in `$defs` of the same schema.",
            stops_accepted_jobs=False,
        ),
        "schema_too_large": CheckCode(
            "A JSON schema exceeds a limit. The schema's size in bytes and its depth are limited. The numbers of "
            "subschemas (after following references), enum values and patterns are limited as well, and so are the "
            "values of bounds such as `minLength` and `maxItems`. Schemas written by hand are far below these limits. "
            "A schema that exceeds them can cost hours of CPU time or all memory, even if the schema has only a few "
            "hundred bytes.",
            "Shorten or remove the part of the schema that the message names. Write documentation of a tool in the "
            "tool's `description`.",
            stops_accepted_jobs=False,
        ),
        "unsupported_pattern": CheckCode(
            "A `pattern` has lookaround, backreferences, `\\b` or `\\p{...}`, which a grammar cannot express. In a job "
            "with `response_format`, the engine uses a grammar to enforce the schemas of `response_format` and of the "
            "tools. The engine would reject the schema or ignore the pattern.",
            "Use only character classes, groups and repetitions in the pattern, and check everything else in the "
            "grader or the tool. In a job without `response_format`, the schemas of tools may have lookaround, "
            "backreferences, `\\b` and `\\p{...}`.",
            stops_accepted_jobs=False,
        ),
        "tool_without_server": CheckCode(
            "A row offers the model a tool, but `method.reinforcement.tools` has no URL for it. Every call to the "
            "tool would fail.",
            "Add an entry with the tool's name and its `server_url`, or remove the tool from the rows.",
            stops_accepted_jobs=False,
        ),
        "missing_value": CheckCode(
            "A grader's template reads `{{ item.x }}`, but this row has no such value. No rollout of the row could be "
            "graded: all of them would be sampled and then discarded.",
            "Add the value to the row, or fix the path in the grader.",
            stops_accepted_jobs=False,
        ),
        "unrenderable_row": CheckCode(
            "The model's chat template raised an error for this row's messages or tools. Templates differ: some refuse "
            "a system message, two user messages in a row, or a tool without a description.",
            "Change the row as the template's error message requires, or use a model with another template.",
            stops_accepted_jobs=False,
        ),
        "row_too_large": CheckCode(
            "The row, as JSON in UTF-8, has more than 500,000 bytes. Each tool call, session start and request to an "
            "endpoint grader includes the row. A request may have at most 1,000,000 bytes, and half of them are "
            "reserved for the longest arguments of a call. This error is also reported if the row's values make a "
            "grader's string longer than 1,000,000 characters. During a run, a rollout with a row that is too large "
            "is discarded. The rollout does not count as the model's error, because the model cannot change the row.",
            "Store large values, such as scans and documents, in files that tools and graders read, and put only the "
            "ids of these files into the row.",
            stops_accepted_jobs=False,
        ),
        "row_too_long": CheckCode(
            "The row exceeds the context length. A prompt must leave at least 16 tokens for the answer; a "
            "conversation of a supervised job must fit completely. Silent truncation would train on half a task.",
            "Shorten or remove the row, or raise `cluster.context_length`, which takes more memory.",
            stops_accepted_jobs=False,
        ),
    },
    "The model": {
        "missing_model": CheckCode(
            "`model` is neither a folder nor a model in the local cache of Hugging Face's hub. Jobs download nothing, "
            "so that a run does not depend on another host.",
            "Download the model first, on all nodes or to a shared disk, and set `model` to its folder.",
            stops_accepted_jobs=True,
        ),
        "not_a_model": CheckCode(
            "The folder is not a complete model in Hugging Face's format: `config.json`, the tokenizer or the weights "
            "as `*.safetensors` are missing or unreadable.",
            "Copy the complete folder again. Weights in another format must be converted first.",
            stops_accepted_jobs=True,
        ),
        "corrupt_weights": CheckCode(
            "A weights file is truncated or missing. The check takes a second and finds the problem before an engine "
            "spends minutes on loading the model.",
            "Copy or download the file again, and compare its size with the source.",
            stops_accepted_jobs=True,
        ),
        "unsupported_model": CheckCode(
            "The model is not a causal language model of a type that engine and learner both support.",
            "Use another model. The page on models lists the supported types.",
            stops_accepted_jobs=False,
        ),
        "adapter_mismatch": CheckCode(
            "The model's folder contains an adapter that does not match `lora`, such as a checkpoint of another job "
            "with `lora`. Training can continue with the adapter if `lora` has the adapter's rank, alpha and targets. "
            "Training a larger adapter or all weights requires a full model.",
            "Set `lora` to the values in the message. Or write a full model with `agent-rft models merge FOLDER OUT`, "
            "and start from it.",
            stops_accepted_jobs=True,
        ),
        "adapter_of_another_model": CheckCode(
            "The tensors of the adapter in the model's folder do not match its base model and `lora`. The adapter was "
            "trained on another model or on other layers.",
            "Check `base_model_name_or_path` and `target_modules` in the folder's `adapter_config.json`.",
            stops_accepted_jobs=True,
        ),
        "unknown_target": CheckCode(
            "A name in `lora.targets` matches no linear layer of the model, so this name would have no effect. An "
            "adapter cannot train the output head, or experts that are stored together in one tensor.",
            "Use the names in the message, or `all-linear`.",
            stops_accepted_jobs=True,
        ),
        "rank_too_large": CheckCode(
            "The rank of `lora` is larger than the rank of every weight matrix that the adapter changes. The adapter "
            "would be larger than the weights without any benefit.",
            "Lower `lora.rank`, or omit `lora`: all weights of such a small model can be trained.",
            stops_accepted_jobs=False,
        ),
        "lora_unsupported": CheckCode(
            "The engine, vLLM, does not support LoRA for this architecture, so rollouts could not use the trained "
            "adapter.",
            "Omit `lora`, or use another model. A supervised job may keep `lora`, because it needs no engine. To serve "
            "its checkpoints, merge them into the model first (`agent-rft models merge FOLDER OUT`).",
            stops_accepted_jobs=True,
        ),
        "not_a_mixture": CheckCode(
            "`algorithm.router_replay` requires a mixture of experts, but the model has no experts.",
            "Omit `algorithm.router_replay`.",
            stops_accepted_jobs=False,
        ),
        "slow_tokenizer": CheckCode(
            "The model has only a Python tokenizer. A fast tokenizer is required, because it can encode text from "
            "tools and users without ever producing special tokens.",
            "Add the `tokenizer.json` of a fast tokenizer to the folder.",
            stops_accepted_jobs=True,
        ),
        "no_chat_template": CheckCode(
            "The tokenizer has no chat template, which defines how messages become tokens. Probably the model is not "
            "instruction-tuned.",
            "Use an instruction-tuned model, or add a `chat_template.jinja`.",
            stops_accepted_jobs=True,
        ),
        "template_error": CheckCode(
            "The chat template raises an error for a question, a turn with tool calls, or tool results. An agent "
            "cannot be trained with it.",
            "Fix the template, or set another one in `model_options.chat_template`.",
            stops_accepted_jobs=False,
        ),
        "calls_not_parsed": CheckCode(
            "The job or its rows have tools or calls, but no tool parser reads the model's calls. The check used the "
            "model's template to render one call, two calls, and a call with reasoning. The check then parsed the "
            "text, but no tool parser returned the same calls. In training, every valid call would count as malformed "
            "or as an answer. Jobs without tools get the warning `tools_unsupported` instead.",
            "Set a template whose call syntax a parser supports, or name the parser in `model_options.tool_parser`. "
            "`agent-rft models template FOLDER > template.jinja` writes a template that adds tools to the model's own; "
            "set it as `model_options.chat_template`. If the job needs no tools, remove them and the calls in the "
            "rows' messages.",
            stops_accepted_jobs=False,
        ),
        "tools_unsupported": CheckCode(
            "The model works only without tools, because no parser reads the tool calls of its chat template. Often "
            "the template renders no calls. For a job without tools this is a warning, and the job runs. Each turn of "
            "the model is then an answer, even if its text resembles a call. If a request to a served model contains "
            "tools, calls or results, the server refuses it with status 400 and this error code.",
            "If you need no tools, change nothing. Otherwise set a template that renders tools, calls and results in "
            "`model_options.chat_template` (`agent-rft models template FOLDER` prints one), and train the model with "
            "it. `agent-rft models doctor FOLDER` shows what works.",
            stops_accepted_jobs=False,
        ),
        "no_call_grammar": CheckCode(
            "The job has a `response_format`, so a grammar must constrain the model's turns. agent-rft has no such "
            "grammar for this model family. For some families, only the grammar for tool calls is missing, so only "
            "rows with tools are a problem.",
            "Omit `response_format` and describe the format in the prompt. Or use a model of another family; the "
            "message lists such families.",
            stops_accepted_jobs=True,
        ),
        "unknown_stop_token": CheckCode(
            "A string in `model_options.stop_tokens` is not a single token of the vocabulary, so no turn could end "
            "with it.",
            "Use the text of a single token. Special tokens are `added_tokens` in `tokenizer.json`.",
            stops_accepted_jobs=False,
        ),
        "template_syntax": CheckCode(
            "The chat template is not valid Jinja with the tags and filters of transformers. A block is not closed, a "
            "filter does not exist, or the nesting is too deep. No message can be rendered.",
            "Fix the template at the line that the message names. `{%- ... -%}` trims spaces, `{% generation %}` needs "
            "`{% endgeneration %}`, and templates cannot include other files.",
            stops_accepted_jobs=True,
        ),
        "template_too_costly": CheckCode(
            "The chat template is too large, or rendering it exceeded a limit of time, memory or output. The limits "
            "are 2 s of CPU time, 1 GiB of memory and 16 MiB of text. Each template is rendered in a separate process, "
            "so an endless loop in the template does not stop the run. Templates are limited to 64 kB in a job, and to "
            "1 MiB in a model's folder.",
            "Remove nested loops, recursion and repeated strings. A typical template renders in a millisecond.",
            stops_accepted_jobs=False,
        ),
        "context_too_long": CheckCode(
            "`cluster.context_length` exceeds the context length that the model was made for.",
            "Set `cluster.context_length` to `auto`, or to at most the number in the message.",
            stops_accepted_jobs=True,
        ),
    },
    "Placement on the cluster": {
        "too_few_resources": CheckCode(
            "The job needs more CPUs or GPUs than the cluster has in total, or one engine or rank needs more than any "
            "single node has. The job would wait forever.",
            "Apply the change that the message names; the job then fits. `agent-rft plan --smallest` shows the "
            "placement with the fewest GPUs, without starting anything.",
            stops_accepted_jobs=True,
        ),
        "no_free_resources": CheckCode(
            "The cluster is large enough for the job, but its resources were not free within the time in the message. "
            "Usually another job uses them. A job with a python grader may also wait for a node that is reserved for "
            "python graders (`python_grader_nodes`). Either no such node has joined the cluster, or other jobs and "
            "trial calls are using these nodes.",
            "Wait until other jobs end, add nodes, or raise the operator's `wait_for_nodes_s`. `ray status` shows the "
            "used resources.",
            stops_accepted_jobs=True,
        ),
        "unknown_nodes": CheckCode(
            "GPU nodes join the cluster on demand (`wait_for_nodes_s`), but none has joined yet, and the operator's "
            "configuration does not list them. Therefore `auto` cannot choose a placement on GPUs, and must not fall "
            "back to CPUs.",
            "Ask the operator to list the cluster's nodes under `nodes` in the configuration. "
            "Or set `cluster.engine_gpus` in the job: 0 trains on CPUs.",
            stops_accepted_jobs=True,
        ),
        "over_limit": CheckCode(
            "The job requests more CPUs or GPUs than the operator allows per job (`jobs.max_cores`, `jobs.max_gpus`), "
            "or a readiness check requests more rollouts (`jobs.max_readiness_rollouts`).",
            "Request fewer CPUs or GPUs under `cluster`, or fewer `samples`. Or ask the operator to raise the limit.",
            stops_accepted_jobs=False,
        ),
        "too_little_memory": CheckCode(
            "A node has less memory than its engines and ranks will need. The estimate keeps 8 % free. The kernel "
            "would kill a process of the job, usually late, at the first checkpoint or weight sync.",
            "Apply the change in the message, or use a node with more memory. `agent-rft plan` shows the parts of the "
            "estimate.",
            stops_accepted_jobs=False,
        ),
        "too_little_gpu_memory": CheckCode(
            "An engine or a learner rank needs more memory than its GPU has. The estimate keeps 8 % free, because "
            "devices report less than their nominal size. The message lists the two largest parts.",
            "Apply the change that the message names; the job then fits. `agent-rft plan --smallest` shows the "
            "placement with the fewest GPUs.",
            stops_accepted_jobs=False,
        ),
        "too_little_cache_memory": CheckCode(
            "The memory that remains for an engine's cache cannot hold one sequence of the full context length, so a "
            "long rollout could never end.",
            "Lower `cluster.context_length`, or give the engine more GPUs.",
            stops_accepted_jobs=False,
        ),
        "bfloat16_on_cpu": CheckCode(
            "`cluster.dtype` is bfloat16, but the engines run on CPU. Many CPUs do not support bfloat16, and on the "
            "other CPUs engine and learner round differently.",
            "Use float32, or `auto`.",
            stops_accepted_jobs=True,
        ),
        "stateful_layers_under_zero_3": CheckCode(
            "`cluster.zero_stage` is 3, but the model has layers that carry a state from token to token, such as "
            "linear attention. Such layers run once per sequence, and each run gathers their weights from all ranks. "
            "A rank with more sequences than the other ranks would wait for them forever.",
            "Set `cluster.zero_stage` to 2, which divides everything except the weights.",
            stops_accepted_jobs=True,
        ),
        "colocated_multi_gpu_engine": CheckCode(
            "`cluster.colocated` lets an engine and a learner rank share one GPU. An engine that is split over "
            "several GPUs cannot share them.",
            "Set `cluster.engine_gpus` to 1, or `colocated` to false, which gives engines and ranks separate GPUs.",
            stops_accepted_jobs=True,
        ),
        "broadcast_on_shared_gpus": CheckCode(
            "`cluster.weight_transport: broadcast` uses NCCL between the GPUs of learner rank 0 and of the engines. "
            "NCCL does not connect two processes on the same GPU.",
            "Use `object_store`, which is required if engines and ranks share a GPU.",
            stops_accepted_jobs=True,
        ),
        "colocated_without_engines": CheckCode(
            "`cluster.colocated` is set for a supervised job, which has no engines to share devices with.",
            "Omit `cluster.colocated`.",
            stops_accepted_jobs=True,
        ),
        "engines_not_shared": CheckCode(
            "`cluster.share_engines` lets several jobs use one engine, which holds the base model once and one "
            "adapter per job. Each of these jobs must therefore train an adapter by reinforcement, and must not stop "
            "the engine while its learner works.",
            "Either set `algorithm.lora` (`{}` is enough) and omit `colocated`, or omit `share_engines`.",
            stops_accepted_jobs=True,
        ),
        "no_engine": CheckCode(
            "The rollout engine, vLLM, is not installed where the command runs.",
            "Install the extra `cpu` or `gpu` of the package. Supervised jobs do not need vLLM.",
            stops_accepted_jobs=True,
        ),
        "no_sandbox": CheckCode(
            "A python grader runs a program of the job's author, so it needs a sandbox: kernel namespaces, created by "
            "agent-rft or by bubblewrap. Neither works on this node, usually because it is a container that may not "
            "create namespaces. If a grader calls `run_untrusted` where no sandbox works, the grade fails, and its "
            "`python_grader_server_error_type` is this code.",
            "Allow namespaces or install bubblewrap, as the message describes. On Kubernetes, give python graders "
            "separate pods (`python_grader_nodes`). If the operator trusts all users who may create jobs, the operator "
            "can set `unsandboxed_python` instead. Graders then cannot use `run_untrusted`.",
            stops_accepted_jobs=True,
        ),
        "runs_not_writable": CheckCode(
            "The run folder cannot be created, because its parent is not a folder or this user may not write to it.",
            "Choose another folder with `--runs`.",
            stops_accepted_jobs=True,
        ),
        "disk_full": CheckCode(
            "The checkpoints that a run keeps, and the one being written, do not fit on the disk. A full disk would "
            "stop the run at a checkpoint, possibly after hours of training.",
            "Free some space, or choose a folder on another disk with `--runs`.",
            stops_accepted_jobs=True,
        ),
        "slow_checkpoints": CheckCode(
            "A warning. Writing a checkpoint takes longer than `cluster.checkpoint_interval`. An interval in minutes "
            "is raised to twice the duration of a write. An interval in steps is not changed, so training waits.",
            "If the interval is given in steps, raise it; use a faster disk for the run folder (`--runs`); or train "
            "an adapter (`algorithm.lora`), whose checkpoints are small.",
            stops_accepted_jobs=False,
        ),
        "small_object_store": CheckCode(
            "A warning. Ray's object store on a node is too small for the weights. The node of the first learner rank "
            "stores one complete version of the weights. Parts of this version (buckets) pass through the object "
            "stores of the engines' nodes. At each update, objects that do not fit are written to `/tmp`.",
            "Give Ray's object store the size in the message: set `--object-store-memory` of `ray start`, or on "
            "Kubernetes `object-store-memory` in `rayStartParams`. `/dev/shm` must be larger than the object store. "
            "`agent-rft plan` lists the sizes of all nodes.",
            stops_accepted_jobs=False,
        ),
        "small_tmp": CheckCode(
            "A warning. Ray's logs, and weights that do not fit in the object store, may need more space than `/tmp` "
            "has. A pod that fills its volume is evicted.",
            "Enlarge `/tmp` (on Kubernetes the `sizeLimit` of its `emptyDir`), or the object store.",
            stops_accepted_jobs=False,
        ),
        "small_shared_memory": CheckCode(
            "The learner sends weights to the engines of a node through `/dev/shm`, which is too small on this node. "
            "Containers get 64 MiB by default.",
            "Enlarge `/dev/shm`. For a container, use `--shm-size`. On Kubernetes, mount an `emptyDir` with "
            "`medium: Memory` at `/dev/shm`.",
            stops_accepted_jobs=True,
        ),
    },
}
