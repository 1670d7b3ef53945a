"""`make kubernetes`: the laptop's overlay on a real cluster. It needs KUBECONFIG, KubeRay's operator and our image."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import Any

import kr8s
import pytest

from tests.kubernetes.cluster import EPOCHS, IMAGE, NOT_YET, Cluster, Means, manual_blocks, missing
from tests.support.paths import ROOT

FILES = ("test_job.py", "test_service.py", "test_network.py", "test_failures.py")
KEEP = "KEEP" in os.environ
LOGS = ROOT / "build" / "kubernetes"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster, with an empty place for the namespace; what the tests made in it is deleted at the end."""
    means = Means.given()
    try:
        api = kr8s.api(namespace="agent-rft")
        lacking = missing(api, IMAGE, means, KEEP)
    except (kr8s.APITimeoutError, kr8s.ConnectionClosedError, kr8s.ServerError, OSError, ValueError) as error:
        lacking = f"no cluster answers; set KUBECONFIG: {error}"
    if lacking:
        pytest.exit(f"make kubernetes: {lacking}", returncode=2)
    found = Cluster(api, means, tmp_path_factory.mktemp("manifests"))
    if not found.exists():
        found.make_volume()
    try:
        yield found
    finally:
        for name, seconds in found.times.items():
            print(f"{seconds:7.0f} s  {name}")
        if not KEEP:
            found.remove()


@pytest.fixture(scope="session")
def applied(cluster: Cluster) -> Cluster:
    """The laptop's overlay, as the manual's commands apply it; its job has more epochs, for all that happens to it."""
    cluster.edit("overlays/laptop/job.yaml", "n_epochs: 1", f"n_epochs: {EPOCHS}")
    if not cluster.exists():
        create, *_ = manual_blocks()
        process = cluster.shell(create)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
    return cluster


@pytest.fixture(scope="session")
def watched(applied: Cluster) -> Iterator[subprocess.Popen[str]]:
    """The manual's commands that show the job's events until they are interrupted."""
    _, watch, *_ = manual_blocks()
    process = applied.shell(watch)
    yield process
    process.kill()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files in the order in which they need each other's pods to be gone."""
    items.sort(key=lambda item: FILES.index(item.path.name) if item.path.name in FILES else -1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Keep the logs of a scenario that failed."""
    report = yield
    found = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and isinstance(found, Cluster):
        try:
            found.save_logs(LOGS / item.name)
            where = f"in {LOGS / item.name}"
        except (*NOT_YET, subprocess.TimeoutExpired) as error:  # an exception here would end the run
            where = f"not saved: {error}"
        report.sections.append(("logs", where))
    return report
