"""The codes of problems with a job before it starts: its file, its rows, its model, its place on the cluster."""

from __future__ import annotations

from agent_rft.problems.code import CheckCode

JOB_CODES: dict[str, dict[str, CheckCode]] = {
    "Configuration files": {
        "unreadable_<file>": CheckCode(
            "The job, its chat template, the operator's configuration (`config`), the list of nodes or the grader's "
            "file cannot be read: it is missing, this user may not read it, or it is not UTF-8 text. A template may "
            "have at most 64 kB.",
            "Check the path that the message shows. A configuration is looked for at `--config`, then at "
            "`AGENT_RFT_CONFIG`, then as `agent-rft.yaml` in the current folder.",
            stops_accepted=True,
        ),
        "<file>_syntax": CheckCode(
            "The file is not valid YAML, or JSON if its name ends in `.json`. Nothing else in it is checked. The line "
            "is not quoted, since it may hold a secret.",
            "Look at the line and the one before it: mostly it is an indentation, a tab, an open quote, or a colon in "
            "a text without quotes.",
            stops_accepted=True,
        ),
        "job_shape": CheckCode(
            "The job's file is a list or a single text, not a mapping of keys to values.",
            "Write `key: value` lines at the top level: `model`, `training_file` and `method` at least.",
            stops_accepted=True,
        ),
        "config_shape": CheckCode(
            "The operator's configuration is a list or a single text, not a mapping of keys to values. An empty file "
            "is fine: it allows nothing beyond the defaults.",
            "Write `key: value` lines such as `allowed_networks: [10.0.0.0/8]`.",
            stops_accepted=True,
        ),
        "grader_shape": CheckCode(
            "The grader's file of `agent-rft grade` is a list or a single text, not a mapping.",
            "Write the grader as it is in the job, with its `type`, or a mapping with `grader` and `guards` as below "
            "`method.reinforcement`.",
            stops_accepted=True,
        ),
        "duplicate_key": CheckCode(
            "A mapping has the same key two times. YAML would silently keep the last one, so an edit of the first "
            "would have no effect.",
            "Remove all but one of them.",
            stops_accepted=True,
        ),
        "missing_variable": CheckCode(
            "The file takes a value from the environment with `${NAME}`, and that variable is not set for the process "
            "that reads the file.",
            "Run `export NAME=...` before the command. For a server, set it where the server is started.",
            stops_accepted=True,
        ),
        "invalid_missing": CheckCode(
            "A required key or item is missing.",
            "Add it; the message names it. If the file has a similar key, it is probably misspelled.",
            stops_accepted=True,
        ),
        "invalid_extra_forbidden": CheckCode(
            "There is no such setting here. Unknown keys are refused because a misspelled setting would otherwise be "
            "ignored, and the job would train for hours with the default.",
            "Take the suggestion of the message: it is a similar key, or the place where a key of this name belongs. "
            "`agent-rft explain NAME` shows where a setting belongs.",
            stops_accepted=True,
        ),
        "invalid_union_tag_not_found": CheckCode(
            "The mapping has several forms, for example the kinds of graders, and `type` says which it is. Without it "
            "nothing else in the mapping can be checked.",
            "Add `type: ...`.",
            stops_accepted=True,
        ),
        "invalid_union_tag_invalid": CheckCode(
            "`type` names a form that does not exist.",
            "Use one of the types in the message.",
            stops_accepted=True,
        ),
        "invalid_duplicate_integration": CheckCode(
            "`integrations` names a tracker more than once. A job has one run in each tracker, so that two would write "
            "into the same one.",
            "Keep one of each type.",
            stops_accepted=True,
        ),
        "invalid_value_error": CheckCode(
            "The value has the right type, but breaks a rule of this setting or does not fit another setting.",
            "Change one of the settings that the message names.",
            stops_accepted=True,
        ),
        "invalid_<type>": CheckCode(
            "The value has the wrong type or is outside the bounds of the setting. The last part of the code is the "
            "name of the rule in pydantic, the library that validates, such as `invalid_int_parsing` or "
            "`invalid_greater_than`.",
            "Correct the value as the message says; `agent-rft explain SETTING` shows type, bounds and default.",
            stops_accepted=True,
        ),
        "truncated_sampling": CheckCode(
            "`top_p`, `top_k` and `min_p` cut off a part of the distribution that the engine samples from. The learner "
            "computes log-probabilities of the whole distribution, so the importance ratios would be wrong.",
            "Remove the setting. To sample less widely, lower `temperature`, which the learner applies as well.",
            stops_accepted=True,
        ),
        "unknown_parser": CheckCode(
            "The engine, vLLM, has no tool parser of this name. The parser turns the text of the model into tool "
            "calls, so without the right one every call is plain text.",
            "Use `auto`, which looks for one that reads what the template writes, or one of the names in the message.",
            stops_accepted=True,
        ),
    },
    "Rows": {
        "tools_not_in_prompt": CheckCode(
            "The chat template does not show the tools of a row, as templates of models without tools do. The model "
            "could not know what it may call, and would be trained without a single call.",
            "Give a template that shows them in `model_options.chat_template`, or say `tools_in_prompt: false` if the "
            "model needs no descriptions.",
            stops_accepted=False,
        ),
        "message_not_in_prompt": CheckCode(
            "The chat template leaves out a message of a row, as many do with roles that they do not know, such as "
            "`developer`.",
            "Use a role that the template knows, such as `system`, or another template.",
            stops_accepted=False,
        ),
        "not_gradable": CheckCode(
            "Draws of the model are to be graded, and the job is supervised, so it has no grader.",
            "Use a job whose method is `reinforcement`.",
            stops_accepted=True,
        ),
        "missing_file": CheckCode(
            "There is no such file. Paths in a job are relative to the job's file, not to the current folder.",
            "Fix the path. For `agent-rft eval --file`, add that file to the job, or name one that it has.",
            stops_accepted=True,
        ),
        "early_stop_without_validation": CheckCode(
            "A job stops early once the mean reward over its validation file stops rising, and this job has no such "
            "file. The reward of training rows says little: they are others at each step, and are memorized.",
            "Set `validation_file` to rows that are not in the training file, or remove `early_stop`.",
            stops_accepted=False,
        ),
        "unreadable_file": CheckCode(
            "The file exists, but cannot be read: this user lacks the permission, or it is not UTF-8 text.",
            "Make it readable, or save it as UTF-8.",
            stops_accepted=True,
        ),
        "empty_file": CheckCode(
            "The file has no rows. The API also refuses an upload of 0 bytes with this code.",
            "Write one JSON object per line.",
            stops_accepted=True,
        ),
        "json_array": CheckCode(
            "The file begins with `[`: it is one JSON array, as `json.dump` of a list writes it. Datasets are JSON "
            "Lines: one whole object per line, with nothing around and between them.",
            "Write each element on a line of its own, for example with `jq -c '.[]' rows.json > rows.jsonl`, or "
            "`json.dumps(row)` and a line break for each row.",
            stops_accepted=False,
        ),
        "broken_json": CheckCode(
            "A line is not valid JSON. `NaN`, `Infinity` and lone surrogates are refused as well, since neither "
            "graders nor tools could receive them.",
            "Write one whole JSON object per line, without line breaks inside.",
            stops_accepted=False,
        ),
        "invalid_row": CheckCode(
            "A line is valid JSON, but not a row in OpenAI's chat format. Rows of a reinforcement job must end with a "
            "user message, which the model is to answer; rows of a supervised job with an assistant message, which it "
            "learns.",
            "Fix what the message names in this row, and look whether the program that wrote it made the same mistake "
            "in others.",
            stops_accepted=False,
        ),
        "invalid_n_examples": CheckCode(
            "A file has fewer or more rows than the operator allows (`jobs.min_training_rows` and so on). Few rows are "
            "memorized; too many are usually a mistake.",
            "Add or remove rows, or ask the operator to change the limit.",
            stops_accepted=False,
        ),
        "invalid_schema": CheckCode(
            "A JSON schema, of a tool's `parameters` or of `response_format`, is not valid (draft 2020-12), refers to "
            "something outside of itself, or its references form a cycle. Calls and answers could not be validated "
            "against it.",
            "Fix the schema at the place that the message shows; definitions belong into `$defs` of the same schema.",
            stops_accepted=False,
        ),
        "schema_too_large": CheckCode(
            "A JSON schema has more than is allowed of something: bytes, levels, subschemas (each reference followed), "
            "values of an enum, patterns, or a least or greatest length or number. The caps are far above what people "
            "write by hand; a few hundred bytes beyond them can cost hours of computing time or all memory.",
            "Lower what the message names, or leave it out. What only documents a tool belongs into its `description`.",
            stops_accepted=False,
        ),
        "unsupported_pattern": CheckCode(
            "A `pattern` has lookaround, backreferences, `\\b` or `\\p{...}`, and its schema holds answers or calls "
            "to it while they are decoded: in `response_format`, and in tools beside it. The grammar cannot express "
            "it, so the engine would refuse the schema or ignore the pattern.",
            "Write the pattern with classes, groups and repetitions only, or check the rest in the grader or the tool. "
            "In the schemas of tools without `response_format` such patterns are fine.",
            stops_accepted=False,
        ),
        "tool_without_server": CheckCode(
            "A row offers the model a tool, but `method.reinforcement.tools` says no address for it: every call of it "
            "would fail.",
            "Add an entry with the tool's name and its `server_url`, or remove the tool from the rows.",
            stops_accepted=False,
        ),
        "missing_value": CheckCode(
            "A grader's template reads `{{ item.x }}`, and this row has no such value. No rollout of the row could be "
            "graded: all of them would be discarded, after the time to sample them.",
            "Add the value to the row, or fix the path in the grader.",
            stops_accepted=False,
        ),
        "unrenderable_row": CheckCode(
            "The model's chat template raised an error for this row's messages or tools. Templates differ: some refuse "
            "a system message, two user messages in a row, or a tool without a description.",
            "Change the row as the template's error says, or use a model with another template.",
            stops_accepted=False,
        ),
        "row_too_large": CheckCode(
            "Each tool call, session start and request to an endpoint grader has its row. A call has at most 1,000,000 "
            "bytes, so the row may take 500,000 as JSON in UTF-8, and the rest is for the longest arguments. Or the "
            "row's values make a grader's text longer than 1,000,000 characters. In a run such a rollout is discarded: "
            "the model cannot change its row.",
            "Keep large values, such as scans and documents, in files that tools and graders read, and an id of them "
            "in the row.",
            stops_accepted=False,
        ),
        "row_too_long": CheckCode(
            "The row does not fit the context. A prompt must leave at least 16 tokens for the answer; a conversation "
            "of a supervised job must fit as a whole. Shortening it silently would train on half a task.",
            "Shorten or remove the row, or raise `cluster.context_length`, which takes more memory.",
            stops_accepted=False,
        ),
    },
    "The model": {
        "missing_model": CheckCode(
            "`model` is neither a folder nor in the local cache of Hugging Face's hub. Jobs download nothing, so that "
            "a run does not depend on another host.",
            "Download the model first, on all nodes or to a shared disk, and give its folder.",
            stops_accepted=True,
        ),
        "not_a_model": CheckCode(
            "The folder is not a complete model in Hugging Face's form: `config.json`, the tokenizer or the weights as "
            "`*.safetensors` are missing or cannot be read.",
            "Copy the whole folder again. Weights in another format have to be converted first.",
            stops_accepted=True,
        ),
        "corrupt_weights": CheckCode(
            "A file of weights is truncated or missing. This is found here, in a second, rather than by an engine that "
            "loads the model for minutes.",
            "Copy or download the file again; compare its size with the source.",
            stops_accepted=True,
        ),
        "unsupported_model": CheckCode(
            "The model's type is not a causal language model that engine and learner both support.",
            "Use another model; the manual's page on models says what is supported.",
            stops_accepted=False,
        ),
        "other_adapter": CheckCode(
            "The model's folder has an adapter, such as a checkpoint of a job with `lora`. Training can go on with it "
            "if `lora` has its rank, alpha and targets. A larger adapter, or all weights, can only be trained from a "
            "whole model.",
            "Give `lora` the shape in the message, or write a whole model with `agent-rft models merge FOLDER OUT` and "
            "start from that.",
            stops_accepted=True,
        ),
        "adapter_of_another_model": CheckCode(
            "The tensors of the adapter in the model's folder are not those that its base and `lora` need: it was "
            "trained on another model, or on other layers.",
            "Look at `base_model_name_or_path` and `target_modules` in the folder's `adapter_config.json`.",
            stops_accepted=True,
        ),
        "unknown_target": CheckCode(
            "A name in `lora.targets` matches no linear layer of the model, so nothing would be trained there. The "
            "output head cannot be adapted, nor can experts whose weights are one tensor.",
            "Use names of the message, or `all-linear`.",
            stops_accepted=True,
        ),
        "rank_too_large": CheckCode(
            "The rank of `lora` is larger than that of every weight it adapts, so the adapter would be larger than the "
            "weights and could express nothing more.",
            "Lower `lora.rank`, or leave `lora` out: for so small a model all weights can be trained.",
            stops_accepted=False,
        ),
        "no_adapters": CheckCode(
            "The engine, vLLM, has no adapters for a model of this architecture, so rollouts could not use what was "
            "learned.",
            "Leave `lora` out, or use another model. Supervised jobs need no engine, so they may use `lora`, and its "
            "checkpoints can be merged.",
            stops_accepted=True,
        ),
        "no_experts": CheckCode(
            "`algorithm.router_replay` is for mixtures of experts, and the model has no experts.",
            "Leave it out.",
            stops_accepted=False,
        ),
        "slow_tokenizer": CheckCode(
            "The model has only a tokenizer in Python. A fast one is needed, because it can encode text from tools and "
            "users without ever producing special tokens.",
            "Add the `tokenizer.json` of a fast tokenizer to the folder.",
            stops_accepted=True,
        ),
        "no_chat_template": CheckCode(
            "The tokenizer has no chat template, so there is no rule for how messages become tokens: probably it is a "
            "base model.",
            "Use an instruction-tuned model, or add a `chat_template.jinja`.",
            stops_accepted=True,
        ),
        "template_fails": CheckCode(
            "The chat template raises an error for a question, for a turn with tool calls, or for their results, so an "
            "agent cannot be trained with it.",
            "Fix the template, or give another one in `model_options.chat_template`.",
            stops_accepted=False,
        ),
        "calls_not_read": CheckCode(
            "The job has tools, or a row has tools, calls or results in its messages. The check rendered one call, two "
            "calls and a call with reasoning with the model's own template, and no tool parser read the same calls: "
            "each good call would count as malformed, or as an answer. A job without any of these is not refused; see "
            "`tools_unsupported`.",
            "Give a template that writes calls as a parser reads them, or name the parser in "
            "`model_options.tool_parser`. `agent-rft models template FOLDER` writes one that adds tools to the model's "
            "own template. If the job needs no tools, remove them, and the calls in the rows' messages.",
            stops_accepted=False,
        ),
        "tools_unsupported": CheckCode(
            "The model works without tools only, because no parser reads the tool calls of its chat template; often "
            "the template renders none. The check of a job without tools warns with this code, and the job runs: each "
            "turn of the model is an answer, even if its text looks like a call. A served model answers a request "
            "that has tools, calls or results with status 400 and this code.",
            "Nothing, if you need no tools. Else give a template that renders tools, calls and results in "
            "`model_options.chat_template` (`agent-rft models template FOLDER` writes one), and train the model with "
            "it. `agent-rft models doctor FOLDER` shows what works.",
            stops_accepted=False,
        ),
        "no_call_grammar": CheckCode(
            "The job has a `response_format`, and rows with tools. In each turn the model may then write calls or an "
            "answer of that form, and for the calls of this model's family (or for all of its turns) there is no "
            "grammar that constrained decoding could follow.",
            "Leave `response_format` out and ask for the form in the prompt, or use a model of a family whose calls "
            "have a grammar.",
            stops_accepted=True,
        ),
        "unknown_stop_token": CheckCode(
            "A text of `model_options.stop_tokens` is not one token of the vocabulary, so no turn could end with it.",
            "Use the text of one token; those with a meaning are `added_tokens` in `tokenizer.json`.",
            stops_accepted=False,
        ),
        "template_syntax": CheckCode(
            "The chat template is not valid Jinja, with the tags and filters that transformers has: a block is not "
            "closed, a filter does not exist, or it is nested too deeply. No message can become tokens.",
            "Correct the line in the message. `{%- ... -%}` trims spaces, `{% generation %}` needs "
            "`{% endgeneration %}`, and no other file can be included.",
            stops_accepted=True,
        ),
        "template_too_costly": CheckCode(
            "The chat template took more time or memory than a render may have, wrote a text that is too large, or is "
            "too large itself. It renders in a process of its own with these limits, so that a loop without end stops "
            "one render and not a run: 2 s of a processor, 1 GiB, 16 MiB of text, and 64 kB for a template that a job "
            "gives (1 MiB for one in a model's folder).",
            "Remove nested loops, recursion and repeated texts: a usual template renders in a millisecond.",
            stops_accepted=False,
        ),
        "context_too_long": CheckCode(
            "`cluster.context_length` is larger than what the model was made for.",
            "Give at most the number in the message, or `auto`.",
            stops_accepted=True,
        ),
    },
    "Place on the cluster": {
        "too_few_resources": CheckCode(
            "The job needs more cores or GPUs than the cluster has in total, or one engine or rank needs more than any "
            "single node has. It would wait forever.",
            "Change what the message says: the job fits with it. `agent-rft plan --smallest` shows the layout "
            "with the fewest GPUs, without starting anything.",
            stops_accepted=True,
        ),
        "no_free_resources": CheckCode(
            "The cluster is large enough for the job, but its resources were not free in the time that the message "
            "shows: mostly another job has them. For a python grader: no node for such graders (`python_grader_nodes`) "
            "has joined, or other jobs and trials use it.",
            "Wait until other jobs have ended, add nodes, or raise the operator's `wait_for_nodes_s`. `ray status` "
            "shows what is in use.",
            stops_accepted=True,
        ),
        "unknown_nodes": CheckCode(
            "GPU nodes join the cluster on demand (`wait_for_nodes_s`), none is there yet, and the operator's "
            "configuration does not list them. So `auto` cannot choose a layout, and must not choose CPUs.",
            "The operator lists the nodes in `nodes` of the configuration, as for `agent-rft plan --cluster`. Or set "
            "`cluster.engine_gpus` in the job: 0 trains on CPUs.",
            stops_accepted=True,
        ),
        "over_limit": CheckCode(
            "The job asks for more cores or GPUs than the operator allows one job (`jobs.max_cores`, `jobs.max_gpus`), "
            "or a look before training for more rollouts (`jobs.max_readiness_rollouts`).",
            "Ask for less below `cluster`, or for fewer `samples`; or ask the operator to raise the limit.",
            stops_accepted=False,
        ),
        "too_little_memory": CheckCode(
            "A node has less memory than the engines and ranks placed on it will need, with 8 % kept free. The kernel "
            "would kill a process of the job, mostly late, at the first checkpoint or weight sync.",
            "Change what the message says, or use a node with more memory; `agent-rft plan` shows the parts of the "
            "estimate.",
            stops_accepted=False,
        ),
        "too_little_gpu_memory": CheckCode(
            "An engine or a learner rank needs more than its GPU has, with 8 % kept free, since devices report less "
            "than their name says; the message names the two largest parts.",
            "Change what the message says: the job fits with it. `agent-rft plan --smallest` shows the layout "
            "with the fewest GPUs.",
            stops_accepted=False,
        ),
        "no_room_for_context": CheckCode(
            "What is left for the cache of an engine does not hold even one sequence of the full context length, so a "
            "long rollout could never end.",
            "Lower `cluster.context_length`, or give the engine more GPUs.",
            stops_accepted=False,
        ),
        "bfloat16_on_cpu": CheckCode(
            "`cluster.dtype` is bfloat16 and the engines run on cores. Many CPUs lack the instructions, and where it "
            "runs, engine and learner round differently.",
            "Use float32, or `auto`.",
            stops_accepted=True,
        ),
        "states_under_zero_3": CheckCode(
            "`cluster.zero_stage` is 3, and the model has layers that carry a state from token to token, as linear "
            "attention does. They run once for each sequence, so ranks would gather their weights differently often.",
            "Set it to 2, which divides all but the weights.",
            stops_accepted=True,
        ),
        "colocated_on_gpus": CheckCode(
            "`cluster.colocated` lets an engine and a learner rank share one GPU. An engine that is split over several "
            "GPUs has them for itself.",
            "Set `cluster.engine_gpus` to 1, or `colocated` to false: each then has its own GPUs.",
            stops_accepted=True,
        ),
        "broadcast_on_shared_gpus": CheckCode(
            "`cluster.weight_transport: broadcast` uses NCCL between the GPUs of learner rank 0 and of the engines. "
            "NCCL does not connect two processes on the same GPU.",
            "Use `object_store`, which engines and ranks that share a GPU need.",
            stops_accepted=True,
        ),
        "colocated_without_engines": CheckCode(
            "`cluster.colocated` is set for a supervised job, which has no engines to take turns with.",
            "Leave it out.",
            stops_accepted=True,
        ),
        "engines_not_shared": CheckCode(
            "`cluster.share_engines` lets jobs use one engine, which has the start model once and an adapter of "
            "each job. So each of them trains an adapter, by reinforcement, and none stops the engine while it learns.",
            "Give `algorithm.lora`, such as `{}`, and leave out `colocated`; or leave out `share_engines`.",
            stops_accepted=True,
        ),
        "no_engine": CheckCode(
            "The engine of rollouts, vLLM, is not installed where the command runs.",
            "Install the extra `cpu` or `gpu` of the package; supervised jobs need none.",
            stops_accepted=True,
        ),
        "no_sandbox": CheckCode(
            "A python grader runs a program of the job's author, so it gets a sandbox: namespaces of the kernel, "
            "created by us or by bubblewrap. Neither works on this node, mostly because it is a container that may not "
            "create them. It is also the type of a grade's failure (`python_grader_server_error_type`) if the grader "
            "calls `run_untrusted` and there is no sandbox for that.",
            "Allow namespaces or install bubblewrap, as the message says. On Kubernetes give python graders pods of "
            "their own (`python_grader_nodes`). Where everybody who may create jobs is trusted, the operator can set "
            "`unsandboxed_python` instead; `run_untrusted` then fails.",
            stops_accepted=True,
        ),
        "runs_not_writable": CheckCode(
            "The run folder cannot be created, since its parent is not a folder or not writable for this user.",
            "Choose another folder with `--runs`.",
            stops_accepted=True,
        ),
        "disk_full": CheckCode(
            "The checkpoints that a run keeps, and the one being written, will not fit the disk. A full disk would "
            "stop the run at a checkpoint, after hours.",
            "Free some space, or choose a folder on another disk with `--runs`.",
            stops_accepted=True,
        ),
        "slow_checkpoints": CheckCode(
            "Writing a checkpoint takes longer than `cluster.checkpoint_interval`. An interval in minutes becomes "
            "twice the time of a write. An interval in steps is kept, so training waits. A warning: the job starts.",
            "Raise the interval in steps, use a faster disk for the run folder (`--runs`), or train an adapter "
            "(`algorithm.lora`), whose checkpoints are small.",
            stops_accepted=False,
        ),
        "small_object_store": CheckCode(
            "A whole version of the weights stays in the object store of the first learner rank's node, and buckets of "
            "it pass through those of the engines' nodes. What finds no room there is written to `/tmp` at each "
            "update. A warning: the job starts.",
            "Start Ray with the size in the message (`--object-store-memory`; on Kubernetes `object-store-memory` in "
            "`rayStartParams`), and enlarge `/dev/shm` with it. `agent-rft plan` lists the sizes of all nodes.",
            stops_accepted=False,
        ),
        "small_tmp": CheckCode(
            "Ray's logs, and weights for which the object store has no room, may take more than `/tmp` has. A pod that "
            "fills its volume is evicted. A warning: the job starts.",
            "Enlarge it (on Kubernetes the `sizeLimit` of its `emptyDir`), or the object store.",
            stops_accepted=False,
        ),
        "no_shared_memory": CheckCode(
            "Weights go from the learner to the engines of a node through `/dev/shm`, which is too small here. "
            "Containers get 64 MiB unless told otherwise.",
            "Enlarge it: `--shm-size` for a container, a memory-backed volume on Kubernetes.",
            stops_accepted=True,
        ),
    },
}
