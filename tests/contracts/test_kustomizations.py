"""A clone has every file that a kustomization names, so that `kubectl apply -k` needs no step before it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import PurePosixPath
from typing import Any

import pytest
import yaml

from tests.contracts.manifests import K8S, tracked_files

NAMES_NO_FILE = {"apiVersion", "kind", "namespace", "images", "generatorOptions", "replacements"}


def named_files(folder: PurePosixPath, content: dict[str, Any]) -> Iterator[PurePosixPath]:
    """The paths that a kustomization in `folder` names; of a folder, its kustomization.yaml.

    Raises:
        ValueError: The kustomization has a key that this function does not read.
    """
    for key, value in content.items():
        if key in ("resources", "components"):
            paths = [folder / name for name in value]
            yield from (path if path.suffix else path / "kustomization.yaml" for path in paths)
        elif key == "configMapGenerator":
            yield from (folder / name for generated in value for name in generated["files"])
        elif key == "patches" and all("path" not in patch for patch in value):
            continue
        elif key not in NAMES_NO_FILE:
            raise ValueError(f"{folder}/kustomization.yaml: add {key!r} to what this test reads")


def missing_files(tracked: Collection[str]) -> list[str]:
    """The files below k8s/ that a kustomization there names and that are not among `tracked`."""
    missing = []
    for name in sorted(tracked):
        path = PurePosixPath(name)
        if path.name == "kustomization.yaml":
            for named in named_files(path.parent, yaml.safe_load((K8S / path).read_text())):
                below_k8s = (K8S / named).resolve().relative_to(K8S).as_posix()
                if below_k8s not in tracked:
                    missing.append(f"{path} names {below_k8s}")
    return missing


def test_every_file_that_a_kustomization_names_is_in_git() -> None:
    assert missing_files(tracked_files()) == []


@pytest.mark.parametrize(
    "name", ["monitoring/alerts.yaml", "monitoring/dashboards/job.json", "base/kustomization.yaml"]
)
def test_a_file_that_is_not_in_git_is_found(name: str) -> None:
    missing = missing_files(tracked_files() - {name})
    assert missing and all(line.endswith(f" names {name}") for line in missing)


def test_a_key_that_may_name_files_is_rejected_until_it_is_read() -> None:
    for content in ({"crds": ["crd.yaml"]}, {"patches": [{"path": "patch.yaml"}]}):
        with pytest.raises(ValueError, match=r"overlay/kustomization.yaml: add '(crds|patches)'"):
            list(named_files(PurePosixPath("overlay"), content))


def test_no_patch_depends_on_the_position_in_a_list() -> None:
    """An entry that is inserted in front of the one that is meant would get the change, without an error."""
    for name in sorted(tracked_files()):
        if PurePosixPath(name).name == "kustomization.yaml":
            content = yaml.safe_load((K8S / name).read_text())
            paths = [
                change["path"] for patch in content.get("patches", []) for change in yaml.safe_load(patch["patch"])
            ]
            paths += [
                path.replace(".", "/")
                for replacement in content.get("replacements", [])
                for target in replacement["targets"]
                for path in target["fieldPaths"]
            ]
            assert not [path for path in paths if any(part.isdecimal() for part in path.split("/"))], name
