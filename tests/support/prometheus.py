"""A real Prometheus: Debian's, which `make test` unpacks below build/, or an installed one."""

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
"""Half of the scrape interval in these tests, so that a query also returns what a single scrape saw."""


def binary(name: str) -> str:
    """The path of `prometheus` or `promtool`."""
    found = shutil.which(name) or shutil.which(name, path=str(UNPACKED))
    assert found is not None, f"{name} is missing: `make test` fetches it, or apt-get install prometheus"
    return found


@dataclass(frozen=True)
class Prometheus:
    """A client of the API at `url`; queries cover everything since `start` (Unix time)."""

    url: str
    start: float

    def series(self, expr: str) -> list[dict[str, Any]]:
        """The series that the expression returned at any time since the start; fails if it is invalid."""
        return self.history(expr, self.start, time.time(), STEP_S)

    def history(self, expr: str, start: float, end: float, step_s: float) -> list[dict[str, Any]]:
        """The series that the expression returned between two Unix times."""
        result: list[dict[str, Any]] = self._ask("query_range", query=expr, start=start, end=end, step=step_s)["result"]
        return result

    def at(self, expr: str, time: float) -> list[dict[str, Any]]:
        """The series that the expression has at a Unix time, in the order of the answer."""
        result: list[dict[str, Any]] = self._ask("query", query=expr, time=time)["result"]
        return result

    def exemplars(self, expr: str) -> list[dict[str, Any]]:
        """The exemplars of the series that the expression selects; they may be older than the first scrape."""
        found = self._ask("query_exemplars", query=expr, start=self.start - 60, end=time.time())
        return [exemplar for series in found for exemplar in series["exemplars"]]

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
    """Runs a Prometheus with this configuration and its data in `folder`."""
    port = unused_port()
    options = [f"--config.file={config}", f"--storage.tsdb.path={folder}", f"--web.listen-address=127.0.0.1:{port}"]
    options.append("--enable-feature=exemplar-storage")
    start = time.time()
    with subprocess.Popen([binary("prometheus"), *options, "--log.level=error"]) as process:
        try:
            _wait_until_ready(port, process)
            yield Prometheus(f"http://127.0.0.1:{port}", start)
        finally:
            process.terminate()


def _wait_until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5).close()
            return
        except OSError:
            assert process.poll() is None and time.monotonic() < deadline, "Prometheus did not start"
            time.sleep(0.1)
