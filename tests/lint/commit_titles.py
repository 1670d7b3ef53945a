"""Finds long titles of commits: `python -m tests.lint.commit_titles`, a part of `make lint`.

It reads the commits since the rule exists, as far as the checkout has them, and exits with 1 if a title has more than
72 characters.
"""

from __future__ import annotations

import subprocess
import sys

from tests.support.paths import ROOT

SINCE = "2026-11-28"
MAX_CHARS = 72


def main() -> int:
    command = ["git", "log", f"--since={SINCE}", "--no-merges", "--format=%h %s"]
    log = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    titles = [line.split(" ", 1) for line in log.splitlines()]
    long = [f"{commit}: {title!r} has {len(title)} characters" for commit, title in titles if len(title) > MAX_CHARS]
    print(*long, sep="\n", end="\n" if long else "")
    return int(bool(long))


if __name__ == "__main__":
    sys.exit(main())
