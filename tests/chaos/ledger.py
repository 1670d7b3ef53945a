"""The ledger's tools and grader behind a faulty server, as separate processes, for as long as a block runs."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.ledger.services import services
from tests.chaos.plan import Plan


@dataclass(frozen=True)
class FaultyLedger:
    """`environment` is for the ledger's job.yaml; `url` is that of the faulty server (sessions: /session/start)."""

    environment: dict[str, str]
    url: str

    def record(self) -> dict[str, Any]:
        """The server's record: tests.chaos.server.Record as JSON."""
        with urllib.request.urlopen(f"{self.url}/stats", timeout=10) as answer:
            record: dict[str, Any] = json.load(answer)
            return record


@contextmanager
def faulty_ledger(plan: Plan, *server_options: str) -> Iterator[FaultyLedger]:
    """Start the servers; `server_options` are for the ledger's own servers."""
    with services(*server_options) as environment, tempfile.TemporaryDirectory() as folder:
        plan.write(Path(folder) / "plan.json")
        upstreams = {"tools/": environment["LEDGER_TOOLS_URL"], "grade": environment["LEDGER_GRADER_URL"]}
        options = [f"--upstream={prefix}={url}" for prefix, url in upstreams.items()]
        command = [sys.executable, "-m", "tests.chaos.server", "--plan", str(Path(folder) / "plan.json"), *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as server:
            try:
                assert server.stdout is not None
                url = server.stdout.readline().strip()
                if not url:
                    raise RuntimeError(f"the faulty server ended at once, with exit code {server.wait()}")
                yield FaultyLedger(environment | {"LEDGER_TOOLS_URL": url, "LEDGER_GRADER_URL": url}, url)
            finally:
                server.terminate()
