"""The codes of `agent-rft import` and `agent-rft init` alone; what they say of a job's form has those of `check`."""

from __future__ import annotations

from agent_rft.problems.code import ProblemCode

IMPORT_CODES: dict[str, dict[str, ProblemCode]] = {
    "Importing": {
        "unsupported_method": ProblemCode(
            "The job to import was trained by a method that is not here, such as `dpo`.",
            "Save the job as an export, change its method and rows to one of the methods in the message, and import "
            "that with `--from`.",
        ),
        "unsupported_row": ProblemCode(
            "The row has something other than text (an image, audio, a file), or a call in the form from before "
            "`tools`. Leaving it out would change the task, so nothing is imported.",
            "Remove such rows from a copy of the file, or describe in words what they show, and give the copy with "
            "`--training-file` or `--validation-file`.",
        ),
        "file_gone": ProblemCode(
            "The job names a file of rows that its service has no more: files can be deleted, or expire, while the job "
            "stays. In an export it is a file that the folder lacks.",
            "Give your own copy with `--training-file` or `--validation-file`; it need not have the same name.",
        ),
    },
    "Writing a project": {
        "unfit_function": ProblemCode(
            "A model calls a tool by its name, with named arguments in JSON. `agent-rft init` makes the tool's JSON "
            "schema from the function's type hints, by pydantic, so each argument needs a name and a hint that JSON "
            "can express.",
            "Correct the function's header, or leave it out: name those that you want, each with `--tool`.",
        ),
        "unfit_operation": ProblemCode(
            "An operation of an OpenAPI document becomes a tool with its `operationId` as name and its parameters and "
            "JSON body as arguments. References are replaced by what they refer to, within the document only, so one "
            "that contains itself has no end.",
            "Correct a copy of the document, or leave the operation out: name those that you want, each with `--tool`.",
        ),
        "unfit_example": ProblemCode(
            "A CSV file of examples needs a first line that names its columns, among them a question and an answer, "
            "and in each further line a value for each. Of two answers to the same question, one is wrong.",
            'Correct the line in the message. A spreadsheet that saves as "CSV UTF-8" quotes values where it must.',
        ),
    },
}
