"""How a process's metrics reach Prometheus: one port a node serves those of all jobs and processes on it.

Each process rewrites a file of its own every few seconds, whatever else it does; whichever of them holds the port reads
all files and answers. When it ends, another takes the port over: there is no daemon, nothing to start and nothing left
behind. The gauges of a process that writes no more vanish after seconds, its counters after minutes. The last one that
goes waits for who has asked regularly, so that the end of a job is seen too. A full disk or a port that others hold
costs metrics, never a job.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from prometheus_client import REGISTRY, disable_created_metrics, generate_latest

from actors.runtime.recorder import Recorder
from trainer.errors import UserError

DEFAULT_PORT = 9464
PORT, HOST = "AGENT_RFT_METRICS_PORT", "AGENT_RFT_METRICS_HOST"
PERIOD_S = 5.0
SILENT_S = 4 * PERIOD_S
"""Who has not written for so long is dead, or stands still."""
KEPT_S = 300.0
REQUEST_S = 10.0
"""For a client to send its request."""
STOP_S = 0.1
"""So often the port looks whether it is to be closed."""
LAST_ANSWER_S = 20.0
"""Who asks more seldom than that is not waited for at the end."""
SUFFIX, ASKED = ".prom", "asked"


@dataclass(frozen=True, slots=True)
class MetricsAddress:
    """Of one job's metrics, as its driver chose it and its actors get it."""

    job: str
    host: str
    port: int

    @classmethod
    def of(cls, job: str, *, local: bool, environment: Mapping[str, str] = os.environ) -> MetricsAddress | None:
        """By the environment, else a port that on a `local` cluster only this machine can reach. None: port 0."""
        port = metrics_port(environment)
        host = environment.get(HOST) or ("127.0.0.1" if local else "0.0.0.0")
        return cls(job, host, port) if port else None

    @property
    def folder(self) -> Path:
        """Where this user's processes on this node put what this port serves."""
        return Path(tempfile.gettempdir()) / f"agent-rft-metrics-{os.getuid()}-{self.port}"


def metrics_port(environment: Mapping[str, str] = os.environ) -> int:
    """Raises:
    UserError: the environment names none.
    """
    text = environment.get(PORT) or str(DEFAULT_PORT)
    if not text.isdecimal() or int(text) > 65535:
        raise UserError(f"{PORT} is {text!r}, which is no port; 0 turns metrics off")
    return int(text)


class Telemetry:
    """Of one process. `recorder` takes what is to be known of it; what others registered with prometheus_client (vLLM;
    memory and processor time of the process) goes with it.
    """

    def __init__(self, place: MetricsAddress, process: str, period_s: float = PERIOD_S) -> None:
        """`process` names it among those of its job: `driver`, `engine-0`."""
        disable_created_metrics()  # type: ignore[no-untyped-call] # timestamps that only OpenMetrics has a use for
        self.recorder = Recorder()
        self._place = place
        self._period_s = period_s
        self._labels = ",".join(
            f'{name}="{_escaped(value)}"' for name, value in (("job", place.job), ("process", process))
        )
        stem = re.sub(r"[^\w.-]+", "-", f"{place.job}-{process}")[:150]
        self._file = place.folder / (stem + SUFFIX)  # that of a dead process of this name is taken over
        self._port: _Port | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="telemetry")
        self._thread.start()

    def close(self) -> None:
        """Write a last time and give the port to others. Where nobody else has it and somebody asks regularly, wait for
        that.
        """
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        try:
            while True:
                ended = self._ended.is_set()
                with suppress(OSError, RuntimeError):  # the disk is full; a dict of a source changed while it was read
                    _own(self._place.folder)
                    self._take_port()
                    self._write()
                if ended:
                    break
                self._ended.wait(self._period_s)
        finally:
            if self._port is not None:
                self._port.close_after_answer()

    def _take_port(self) -> None:
        if self._port is None:
            with suppress(OSError):  # another process has it
                self._port = _Port(self._place)

    def _write(self) -> None:
        text = "".join(generate_latest(registry).decode() for registry in (self.recorder.registry, REGISTRY))
        temporary = self._file.with_suffix(".tmp")
        temporary.write_text(labelled(text, self._labels))
        temporary.replace(self._file)
        if self._port is not None:
            remove_old(self._place.folder, time.time())


def start_telemetry(place: MetricsAddress | None, process: str) -> Recorder:
    """Of a process whose end nobody announces, as actors are. Without a place nobody hears of what is recorded."""
    return Recorder() if place is None else Telemetry(place, process).recorder


# -- text --------------------------------------------------------------------------------------------------------------


def labelled(text: str, labels: str) -> str:
    """Prometheus's text format with `labels` put before those of each sample."""
    return "".join(line if line.startswith("#") else _labelled(line, labels) for line in text.splitlines(keepends=True))


def _labelled(sample: str, labels: str) -> str:
    end = re.match(r"[\w:]+", sample)
    assert end is not None, sample
    name, rest = sample[: end.end()], sample[end.end() :]
    return f"{name}{{{labels},{rest[1:]}" if rest.startswith("{") else f"{name}{{{labels}}}{rest}"


def merged(texts: Iterable[tuple[str, bool]]) -> str:
    """Texts of several processes as one: each family once, as the format wants it. Of those that are silent (True) only
    what adds up: counters and histograms.
    """
    heads: dict[str, str] = {}
    samples: dict[str, list[str]] = {}
    for text, silent in texts:
        for family in ("\n" + text).split("\n# HELP ")[1:]:
            about, kind, *lines = family.rstrip("\n").split("\n")
            if silent and kind.endswith(" gauge"):
                continue
            name = about.partition(" ")[0]
            heads.setdefault(name, f"# HELP {about}\n{kind}\n")
            samples.setdefault(name, []).extend(lines)
    return "".join(heads[name] + "".join(line + "\n" for line in samples[name]) for name in heads)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


# -- files and port ----------------------------------------------------------------------------------------------------


def read_all(folder: Path, now: float) -> Iterator[tuple[str, bool]]:
    """What processes wrote, and whether they have fallen silent."""
    for path in sorted(folder.glob("*" + SUFFIX)):
        with suppress(OSError):
            age_s = now - path.stat().st_mtime
            if age_s < KEPT_S:
                yield path.read_text(), age_s >= SILENT_S


def _asked(folder: Path) -> tuple[float, float]:
    """When somebody asked this node the last two times, whoever answered."""
    try:
        before, latest = map(float, (folder / ASKED).read_text().split())
    except (OSError, ValueError):  # never, or it is being written
        return 0.0, 0.0
    return before, latest


def remove_old(folder: Path, now: float) -> None:
    """Files of processes that are long gone."""
    for path in folder.iterdir():
        with suppress(OSError):  # another process removes them too
            if now - path.stat().st_mtime >= KEPT_S:
                path.unlink()


def _own(folder: Path) -> None:
    """Make the folder where it is missing.

    Raises:
        OSError: somebody else made it.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} is another user's")


class _Port(ThreadingHTTPServer):
    """The node's port; answers in threads of its own until it is closed.

    Raises:
        OSError: somebody else has it.
    """

    daemon_threads = True

    def __init__(self, place: MetricsAddress) -> None:
        super().__init__((place.host, place.port), _Handler)
        self.folder = place.folder
        self._again = threading.Event()
        threading.Thread(target=self.serve_forever, args=(STOP_S,), daemon=True, name="metrics-port").start()

    def answer(self) -> bytes:
        now = time.time()
        text = merged(read_all(self.folder, now))
        with suppress(OSError):
            _, latest = _asked(self.folder)
            (self.folder / ASKED).write_text(f"{latest} {now}")
        self._again.set()
        return text.encode()

    def close_after_answer(self) -> None:
        """Who has asked regularly is waited for once more."""
        self._again.clear()
        before, latest = _asked(self.folder)
        due_s = latest + 1.5 * (latest - before) - time.time()
        if latest - before < LAST_ANSWER_S and due_s > 0:
            self._again.wait(due_s)
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_S
    server: _Port

    def do_GET(self) -> None:
        found = self.path.partition("?")[0] == "/metrics"
        body = self.server.answer() if found else b"see /metrics\n"
        self.send_response(HTTPStatus.OK if found else HTTPStatus.NOT_FOUND)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass
