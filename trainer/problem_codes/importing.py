"""The codes of `agent-rft import` alone; what it says of a job's form has the codes of `check`."""

from __future__ import annotations

from trainer.problem_codes.code import ProblemCode

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
}
