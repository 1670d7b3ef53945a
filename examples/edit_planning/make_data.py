"""Writes the rows in `data/`, the same every time: `python -m examples.edit_planning.make_data`.

`--repository PATH --out FILE` makes rows from your own repository: a commit's message, and the files that it touched.
A link to the repository is created where the server looks (`build/edit_planning/repositories`). The rows leave out
merges, root commits, commits that only add files, commits of more than 20 files, and commits with a file name that does
not fit on one line. They also leave out binary files and submodules. A renamed file has its old name.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from examples.common.rows import turn, write_rows
from examples.edit_planning.history import NAMES, README, Change, Split, changes, write_repository
from examples.edit_planning.repositories import REPOSITORIES, STAT_OPTIONS, Unknown, git, text_files

DATA: Final = Path(__file__).parent / "data"
NUM_WARM_START: Final = 96
NUM_TRAIN: Final = 160
NUM_FEW: Final = 16
NUM_TEST: Final = 120
SYSTEM: Final = {
    "role": "system",
    "content": "Which files of the repository will this change touch? Look before you answer. "
    "Answer with their paths, one a line.",
}
PARAMETERS: Final = {
    "shell": ("command", "grep, ls, cat, head, wc, git log, git show"),
    "read_file": ("path", "the text of a file"),
}
PARALLEL_SHARE: Final = 0.25
"""Share of conversations that make all calls in one turn. The others make one call per turn, a habit to unlearn."""
SLOPPY_SHARE: Final = 0.6
"""Share of conversations whose plan also contains the README, even if the change does not touch it."""
MAX_COMMITS: Final = 5_000
MAX_FILES: Final = 20
MAX_MESSAGE_CHARS: Final = 300


def schema(name: str) -> dict[str, Any]:
    """Return a tool's description for the model, in OpenAI's format."""
    parameter, description = PARAMETERS[name]
    parameters = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def row(repository: str, commit: str, message: str, files: Sequence[str]) -> dict[str, Any]:
    """Return the row of a task. Tools, graders and sessions receive it as `item`; the model sees messages and tools."""
    return {
        "messages": [SYSTEM, {"role": "user", "content": message}],
        "tools": [schema(name) for name in PARAMETERS],
        "repository": repository,
        "commit": commit,
        "files": list(files),
    }


def conversation(change: Change, rng: random.Random) -> dict[str, Any]:
    """Return a row for the SFT warm-up: a search for each part, then the plan."""
    messages: list[dict[str, Any]] = [SYSTEM, {"role": "user", "content": change.message}]
    calls = list[tuple[str, dict[str, str], str]]()
    for part in change.parts:
        wanted = f"'{part.wanted}'" if " " in part.wanted else part.wanted
        calls.append(("shell", {"command": f"grep -rl {wanted}"}, "\n".join(change.found(part))))
    parallel = rng.random() < PARALLEL_SHARE
    for i, made in enumerate([calls] if parallel else [[call] for call in calls]):
        messages += turn(made, first=i)
    plan = list(dict.fromkeys(path for part in change.parts for path in change.found(part)))
    if rng.random() < SLOPPY_SHARE and README not in plan:
        plan.append(README)
    messages.append({"role": "assistant", "content": "\n".join(plan)})
    return {"messages": messages, "tools": [schema(name) for name in PARAMETERS]}


def write_data(folder: Path) -> None:
    """Write all files; the folder is created if necessary."""
    train, shown = made_rows("train")
    validation, _ = made_rows("validation")
    test, _ = made_rows("test")
    rng = random.Random(1)
    tasks = train[NUM_WARM_START : NUM_WARM_START + NUM_TRAIN]
    files = {
        "warm_start.jsonl": [conversation(change, rng) for change in shown[:NUM_WARM_START]],
        "many.jsonl": tasks,
        "few.jsonl": tasks[:NUM_FEW],
        "validation.jsonl": validation,
        "test.jsonl": test[:NUM_TEST],
    }
    for name, rows in files.items():
        write_rows(folder / name, rows)


def made_rows(split: Split) -> tuple[list[dict[str, Any]], list[Change]]:
    """Return the rows and the changes of a split's generated repositories, both in the same random order."""
    found = list[tuple[dict[str, Any], Change]]()
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES[split]:
            _, made = changes(name, split)
            ids = write_repository(name, split, Path(folder) / name)
            found += [
                (row(name, commit, change.message, change.files), change)
                for commit, change in zip(ids, made, strict=True)
            ]
    random.Random(split).shuffle(found)
    return [task for task, _ in found], [change for _, change in found]


def rows_of(repository: Path, name: str, most: int) -> Iterator[dict[str, Any]]:
    """Yield at most `most` rows from a repository's latest 5,000 commits, newest first.

    Raises:
        Unknown: git prints too much.
        CalledProcessError: git cannot read the repository, or takes too long.
    """
    log = git(repository, "log", "--no-merges", *STAT_OPTIONS, f"-n{MAX_COMMITS}", "--format=%x01%H%x02%P%x02%s%x03")
    yield from islice((task for commit in log.split("\x01")[1:] if (task := _task(name, commit))), most)


def _task(name: str, commit: str) -> dict[str, Any] | None:
    """Return the row for a commit in the format of `git log`; None if the commit is unsuitable."""
    head, _, stats = commit.partition("\x03")
    commit_id, _, rest = head.partition("\x02")
    parents, _, subject = rest.partition("\x02")
    files = sorted(text_files(stats))
    fits = all(path == path.strip() and path.isprintable() and "\ufffd" not in path for path in files)
    message = subject.strip()
    if not parents or not message or "\ufffd" in message or not fits or not 1 <= len(files) <= MAX_FILES:
        return None
    return row(name, commit_id, message[:MAX_MESSAGE_CHARS], files)


def root_of(repository: Path) -> Path:
    """Return the repository's top folder.

    Raises:
        CalledProcessError: The path is not in a repository.
    """
    is_bare = git(repository, "rev-parse", "--is-bare-repository").strip() == "true"
    option = "--absolute-git-dir" if is_bare else "--show-toplevel"
    return Path(git(repository, "rev-parse", option).rstrip("\n"))


def link(repository: Path, folder: Path = REPOSITORIES) -> str:
    """Create a link to the repository where the server looks, and return the link's name.

    Raises:
        FileExistsError: Another repository has the name.
    """
    name = re.sub(r"[^A-Za-z0-9._-]", "-", repository.resolve().name).strip(".-")[:100] or "repository"
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / name
    if not place.exists():
        place.symlink_to(repository.resolve())
    elif place.resolve() != repository.resolve():
        raise FileExistsError(f"{place} is another repository: rename the folder of yours, or remove that one")
    return name


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.edit_planning.make_data", description=__doc__)
    parser.add_argument("--repository", type=Path, metavar="PATH", help="make rows of this repository")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where its rows are written")
    parser.add_argument("--most", type=int, default=500, metavar="N", help="most rows; default: 500")
    parser.add_argument(
        "--repositories", type=Path, default=REPOSITORIES, metavar="FOLDER", help="where the server looks"
    )
    options = parser.parse_args(arguments)
    if (options.repository is None) != (options.out is None):
        parser.error("give --repository and --out, or none of them")
    if options.repository is None:
        write_data(DATA)
        return
    try:
        root = root_of(options.repository)
        rows = list(rows_of(root, link(root, options.repositories), options.most))
    except (FileExistsError, Unknown) as error:
        parser.error(str(error))
    except (subprocess.SubprocessError, OSError) as error:
        parser.error(f"git cannot read {options.repository}: {getattr(error, 'stderr', '') or error}")
    write_rows(options.out, rows)
    print(f"{len(rows)} rows of {options.repository} are in {options.out}")


if __name__ == "__main__":
    main()
