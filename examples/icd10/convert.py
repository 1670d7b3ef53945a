"""Writes codes.tsv from the package simple-icd-10-cm: all codes, or only the codes that the example ships.

    python -m examples.icd10.convert PACKAGES TARGET [--extract]

PACKAGES is the folder into which `requirements/example-icd10.txt` was installed; `make build/icd10/codes.tsv` does
both. `examples/icd10/data/codes.tsv` was written with `--extract`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

from examples.icd10.codes import Code, CodeList, write
from examples.icd10.visits import CHAPTERS, Finding, findings


def read_package(packages: Path) -> Iterator[Code]:
    """Yield the codes of the package with their chapters. Chapters and blocks themselves are left out."""
    sys.path.insert(0, str(packages.resolve()))
    package = importlib.import_module("simple_icd_10_cm")
    for code in package.get_all_codes(True):
        if not package.is_chapter_or_block(code):
            chapter = package.get_ancestors(code)[-1]
            yield Code(code, int(chapter), " ".join(package.get_description(code).split()))


def extract(whole: CodeList) -> list[Code]:
    """Return the codes of the visits' findings, sampled evenly from each chapter, and the groups of these codes."""
    taken = list[Finding]()
    for counts in CHAPTERS.values():
        for chapter, count in counts.items():
            of_chapter = [finding for finding in findings(whole) if finding.chapter == chapter]
            taken += of_chapter[:: max(1, len(of_chapter) // count)]
    kept = {code for finding in taken for code in (finding.parent, finding.unspecified, *finding.codes.values())}
    return [code for name, code in whole.codes.items() if name in kept]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.icd10.convert")
    parser.add_argument("packages", type=Path, help="the folder with the package")
    parser.add_argument("target", type=Path, help="the file to write")
    parser.add_argument("--extract", action="store_true", help="only what the example ships")
    options = parser.parse_args()
    whole = CodeList(read_package(options.packages))
    codes = extract(whole) if options.extract else list(whole.codes.values())
    write(options.target, codes)
    print(f"{options.target}: {len(codes)} codes")


if __name__ == "__main__":
    main()
