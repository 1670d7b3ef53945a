"""A real Prometheus: Debian's, as `make test` puts it below build/, or one that is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.fakes_http import unused_port
from tests.support.paths import ROOT

UNPACKED = ROOT / "build" / "prometheus" / "usr" / "bin"
START_S = 30.0
STEP_S = 0.5
"""Half of the time between two scrapes here: what only one of them saw, as the end of a job, is in the answer."""


def binary(name: str) -> str:
    """The path of `prometheus` or `promtool`."""
    found = shutil.which(name) or shutil.which(name, path=str(UNPACKED))
    assert found is not None, f"{name} is missing: `make test` fetches it, or apt-get install prometheus"
    return found


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus; queries cover all samples since its start."""

    url: str
    """The URL of its HTTP API."""
    begun: float

    def series(self, expr: str) -> list[dict[str, Any]]:
        """The series of a PromQL expression since the start; fails if the expression is not valid."""
        seen = {"start": self.begun, "end": time.time(), "step": STEP_S}
        result: list[dict[str, Any]] = self._ask("query_range", query=expr, **seen)["result"]
        return result

    def names(self) -> set[str]:
        """The names of all metrics."""
        return set(self._ask("label/__name__/values"))

    def targets(self) -> list[dict[str, Any]]:
        targets: list[dict[str, Any]] = self._ask("targets")["activeTargets"]
        return targets

    def _ask(self, what: str, **parameters: Any) -> Any:
        url = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None


@contextmanager
def prometheus(config: Path, folder: Path) -> Iterator[Prometheus]:
    """One that scrapes as `config` says, with its data in `folder`."""
    port = unused_port()
    options = [f"--config.file={config}", f"--storage.tsdb.path={folder}", f"--web.listen-address=127.0.0.1:{port}"]
    begun = time.time()
    with subprocess.Popen([binary("prometheus"), *options, "--log.level=error"]) as process:
        try:
            _wait_until_ready(port, process)
            yield Prometheus(f"http://127.0.0.1:{port}", begun)
        finally:
            process.terminate()


def _wait_until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5).close()
            return
        except OSError:
            assert process.poll() is None and time.monotonic() < deadline, "Prometheus does not start"
            time.sleep(0.1)
