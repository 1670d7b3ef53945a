"""How metrics reach Prometheus: one port per node serves the metrics of all jobs and processes on that node.

Each process rewrites its own file every few seconds, in a thread; the process that holds the port reads all files and
answers scrapes. When it ends, another takes over the port: there is no daemon, nothing to start and nothing left
behind. The gauges of a process that no longer writes vanish after seconds, its counters after minutes. The last process
to exit waits for a scraper that has come regularly, so that the end of a job is scraped too. A full disk or an occupied
port costs metrics, never a job. A scraper that asks for OpenMetrics gets that form, which alone has exemplars.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from prometheus_client import REGISTRY, CollectorRegistry, disable_created_metrics, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics import exposition as openmetrics

from agent_rft.actors.runtime.telemetry.recorder import Recorder
from agent_rft.actors.runtime.telemetry.temporary import make_own_folder
from agent_rft.errors import UserError

DEFAULT_PORT = 9464
PORT, HOST = "AGENT_RFT_METRICS_PORT", "AGENT_RFT_METRICS_HOST"
PERIOD_S = 5.0
SILENT_S = 4 * PERIOD_S
"""A process that has not written for this long is dead or hangs."""
KEPT_S = 300.0
"""How long a silent process's file is kept."""
REQUEST_S = 10.0
"""Timeout for a client to send its request."""
STOP_S = 0.1
"""How often the server checks whether it should shut down."""
LAST_ANSWER_S = 20.0
"""A scraper with a longer interval is not waited for at the end."""
ASKED = "asked"


@dataclass(frozen=True, slots=True)
class Form:
    """A text form of metrics: the suffix of its files, its content type, its last line, and its writer."""

    suffix: str
    content_type: str
    end: str
    write: Callable[[CollectorRegistry], bytes]


PLAIN = Form(".prom", CONTENT_TYPE_PLAIN_0_0_4, "", generate_latest)
_write_open = partial(openmetrics.generate_latest, escaping=openmetrics.ALLOWUTF8)  # else vLLM's colons are replaced
OPEN = Form(".openmetrics", openmetrics.CONTENT_TYPE_LATEST, "# EOF\n", _write_open)
FORMS = (PLAIN, OPEN)


@dataclass(frozen=True, slots=True)
class MetricsAddress:
    """Where one job's metrics are served; chosen by the driver and handed to its actors."""

    job: str
    host: str
    port: int

    @classmethod
    def of(cls, job: str, *, local: bool, environment: Mapping[str, str] = os.environ) -> MetricsAddress | None:
        """From the environment; by default DEFAULT_PORT, on loopback if the cluster is `local`. None for port 0."""
        port = metrics_port(environment)
        host = environment.get(HOST) or ("127.0.0.1" if local else "0.0.0.0")
        return cls(job, host, port) if port else None

    @property
    def folder(self) -> Path:
        """Where this user's processes on this node write the files that this port serves."""
        return Path(tempfile.gettempdir()) / f"agent-rft-metrics-{os.getuid()}-{self.port}"


def metrics_port(environment: Mapping[str, str] = os.environ) -> int:
    """The port from the environment, else DEFAULT_PORT; 0 turns metrics off.

    Raises:
        UserError: the environment variable is not a valid port.
    """
    text = environment.get(PORT) or str(DEFAULT_PORT)
    if not text.isdecimal() or int(text) > 65535:
        raise UserError(f"{PORT} must be a port from 0 to 65535, got {text!r}; 0 turns metrics off")
    return int(text)


class Telemetry:
    """Exports one process's metrics: those of `recorder`, and all that libraries register with prometheus_client.

    The latter are vLLM's metrics, and the memory and CPU time of the process.
    """

    def __init__(self, address: MetricsAddress, process: str, period_s: float = PERIOD_S) -> None:
        """Start the thread that exports; `process` is the process's name within its job: `driver`, `engine-0`."""
        disable_created_metrics()  # type: ignore[no-untyped-call] # timestamps that only OpenMetrics uses
        self.recorder = Recorder()
        self.recorder.record("process_up")
        self._address = address
        self._period_s = period_s
        self._labels = ",".join(
            f'{name}="{_escaped(value)}"' for name, value in (("job", address.job), ("process", process))
        )
        stem = re.sub(r"[^\w.-]+", "-", f"{address.job}-{process}")[:150]
        self._file = address.folder / stem  # with a suffix; replaces that of a dead process of the same name
        self._port: _Port | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="telemetry")
        self._thread.start()

    def close(self) -> None:
        """Write a last time and release the port, after one more scrape if a scraper has come regularly."""
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        try:
            while True:
                ended = self._ended.is_set()
                try:
                    make_own_folder(self._address.folder)
                    self._take_port()
                    self._write()
                except Exception as error:  # noqa: BLE001 - such as a full disk: the thread survives it
                    self.recorder.count_error(error)
                if ended:
                    break
                self._ended.wait(self._period_s)
        finally:
            if self._port is not None:
                self._port.close_after_answer()

    def _take_port(self) -> None:
        if self._port is None:
            with suppress(OSError):  # another process has it
                self._port = _Port(self._address)

    def _write(self) -> None:
        for form in FORMS:
            text = "".join(self._text(form, registry) for registry in (REGISTRY, self.recorder.registry))
            temporary = Path(f"{self._file}.tmp")
            temporary.write_text(labelled(text, self._labels))
            temporary.replace(f"{self._file}{form.suffix}")
        if self._port is not None:
            remove_old(self._address.folder, time.time())

    def _text(self, form: Form, registry: CollectorRegistry) -> str:
        try:
            return form.write(registry).decode()
        except Exception as error:  # noqa: BLE001 - whatever a library raises
            self.recorder.count_error(error)
            return ""


def start_telemetry(address: MetricsAddress | None, process: str) -> Recorder:
    """The recorder of a process that is never closed, such as an actor; without an address nothing is exported."""
    return Recorder() if address is None else Telemetry(address, process).recorder


# -- text --------------------------------------------------------------------------------------------------------------


def labelled(text: str, labels: str) -> str:
    """Text in Prometheus's format, with `labels` inserted before the labels of each sample."""
    return "".join(line if line.startswith("#") else _labelled(line, labels) for line in text.splitlines(keepends=True))


def _labelled(sample: str, labels: str) -> str:
    end = re.match(r"[\w:]+", sample)
    assert end is not None, sample
    name, rest = sample[: end.end()], sample[end.end() :]
    return f"{name}{{{labels},{rest[1:]}" if rest.startswith("{") else f"{name}{{{labels}}}{rest}"


def merged(texts: Iterable[tuple[str, bool]]) -> str:
    """The texts of several processes as one, with each metric family once, as the format requires.

    Each text comes with a flag that says whether its process is silent; of a silent one only counters and histograms
    are kept. Other comments than HELP and TYPE are left out, such as an end of OpenMetrics.
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
            samples.setdefault(name, []).extend(line for line in lines if not line.startswith("#"))
    return "".join(heads[name] + "".join(line + "\n" for line in samples[name]) for name in heads)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


# -- files and port ----------------------------------------------------------------------------------------------------


def read_all(folder: Path, now: float, form: Form = PLAIN) -> Iterator[tuple[str, bool]]:
    """Each process's text, and whether the process has been silent for SILENT_S."""
    for path in sorted(folder.glob("*" + form.suffix)):
        with suppress(OSError):
            age_s = now - path.stat().st_mtime
            if age_s < KEPT_S:
                yield path.read_text(), age_s >= SILENT_S


def _asked(folder: Path) -> tuple[float, float]:
    """The times of the last two scrapes of this node, whichever process answered them."""
    try:
        before, latest = map(float, (folder / ASKED).read_text().split())
    except (OSError, ValueError):  # never, or it is being written
        return 0.0, 0.0
    return before, latest


def remove_old(folder: Path, now: float) -> None:
    """Delete the files of processes that have been silent for KEPT_S."""
    for path in folder.iterdir():
        with suppress(OSError):  # another process removes them too
            if now - path.stat().st_mtime >= KEPT_S:
                path.unlink()


class _Port(ThreadingHTTPServer):
    """The node's metrics port; answers in its own threads until it is closed.

    Raises:
        OSError: another process has the port.
    """

    daemon_threads = True

    def __init__(self, address: MetricsAddress) -> None:
        super().__init__((address.host, address.port), _Handler)
        self.folder = address.folder
        self._answered = threading.Event()
        threading.Thread(target=self.serve_forever, args=(STOP_S,), daemon=True, name="metrics-port").start()

    def answer(self, form: Form) -> bytes:
        now = time.time()
        text = merged(read_all(self.folder, now, form)) + form.end
        with suppress(OSError):
            _, latest = _asked(self.folder)
            (self.folder / ASKED).write_text(f"{latest} {now}")
        self._answered.set()
        return text.encode()

    def close_after_answer(self) -> None:
        """Close, after one more answer if scrapes have come regularly and the next one is due soon."""
        self._answered.clear()
        before, latest = _asked(self.folder)
        due_s = latest + 1.5 * (latest - before) - time.time()
        if latest - before < LAST_ANSWER_S and due_s > 0:
            self._answered.wait(due_s)
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_S
    server: _Port

    def do_GET(self) -> None:
        found = self.path.partition("?")[0] == "/metrics"
        form = OPEN if OPEN.content_type.partition(";")[0] in self.headers.get("Accept", "") else PLAIN
        body = self.server.answer(form) if found else b"see /metrics\n"
        self.send_response(HTTPStatus.OK if found else HTTPStatus.NOT_FOUND)
        self.send_header("Content-Type", form.content_type if found else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass
