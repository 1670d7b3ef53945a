"""Problem codes of `agent-rft import` and `agent-rft init`, except the codes that they share with `check`."""

from __future__ import annotations

from agent_rft.problems.problem_code import ProblemCode

IMPORT_CODES: dict[str, dict[str, ProblemCode]] = {
    "Importing": {
        "unsupported_method": ProblemCode(
            "The job to import was trained with a method that agent-rft does not support, such as `dpo`.",
            "Export the job with OpenAI's SDK. In the export, replace the method by one that the message lists, and "
            "change the rows to suit the new method. Then import the export with `--from`.",
        ),
        "unsupported_row": ProblemCode(
            "The row contains something other than text (an image, audio, a file), or a call in the deprecated format "
            "that preceded `tools`. Leaving it out would change the task, so nothing is imported.",
            "In a copy of the file, remove such rows, or replace the unsupported content with text that describes it. "
            "Pass the copy with `--training-file` or `--validation-file`.",
        ),
        "file_deleted": ProblemCode(
            "The job refers to a file that no longer exists at the service where the job ran. A file can be deleted "
            "or can expire while the job still exists. If an export is imported, its folder does not contain the file.",
            "Pass your own copy of the file with `--training-file` or `--validation-file`. The copy may have any name.",
        ),
    },
    "Writing a project": {
        "unsupported_function": ProblemCode(
            "The function cannot become a tool. A model calls a tool with named arguments in JSON, and `agent-rft "
            "init` generates the tool's JSON schema from the function's type hints with pydantic. Each argument "
            "therefore needs a name and a type hint that JSON can represent.",
            "Fix the function's signature, or select only the other functions, each with `--tool`.",
        ),
        "unsupported_operation": ProblemCode(
            "An operation in an OpenAPI document cannot become a tool. The tool's name is the operation's "
            "`operationId`; the tool's arguments are the operation's parameters and JSON body. References are resolved "
            "only within the document, and a schema that refers to itself cannot be resolved.",
            "Fix a copy of the document, or select only the other operations, each with `--tool`.",
        ),
        "unsupported_tool": ProblemCode(
            "A tool in a list of tools cannot be used. Each tool needs a name. A tool with arguments also needs a JSON "
            "schema of the type `object`. `agent-rft init` converts the schemas of common data sets, but refuses an "
            "ambiguous schema.",
            "Fix a copy of the list as the message describes, or select only the other tools, each with `--tool`.",
        ),
        "invalid_example": ProblemCode(
            "A CSV file of examples is invalid. The first line must name the columns, including a question and an "
            "answer. Each further line needs a value for every column. A question must not have two different "
            "answers, because one of the answers would be wrong.",
            'Fix the line that the message names. If you save a spreadsheet as "CSV UTF-8", the program puts values '
            "in quotes where needed.",
        ),
    },
}
