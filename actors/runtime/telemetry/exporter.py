"""Export of metrics to Prometheus: one port per node serves the metrics of all jobs and processes on that node.

Each process has a thread that rewrites the process's metrics file every few seconds. One of the processes holds the
port, reads all files and answers scrapes. When this process ends, another process takes over the port, so no daemon is
needed.

- If a process stops writing its file, its gauges are dropped after SILENT_S, and its counters after DELETE_AFTER_S.
- If a regular scrape is due soon, the process that holds the port waits for this scrape before it exits. Prometheus
  therefore also gets the last values of a job.
- If the disk is full or the port is occupied, metrics are lost, but jobs do not fail.
- Scrapers that accept the OpenMetrics format get this format, because no other format has exemplars.
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
from agent_rft.actors.runtime.telemetry.temporary_folder import create_private_folder
from agent_rft.errors import UserError

DEFAULT_PORT = 9464
PORT, HOST = "AGENT_RFT_METRICS_PORT", "AGENT_RFT_METRICS_HOST"
PERIOD_S = 5.0
SILENT_S = 4 * PERIOD_S
"""Age of a metrics file at which its process counts as dead or hung."""
DELETE_AFTER_S = 300.0
"""Age at which a metrics file is deleted, because its process no longer writes it."""
REQUEST_S = 10.0
"""Timeout for receiving a client's request."""
STOP_S = 0.1
"""Interval at which the server checks whether it should shut down."""
MAX_SCRAPE_INTERVAL_S = 20.0
"""Maximum interval between scrapes. If the interval is longer, an exiting process does not wait for the next scrape."""
SCRAPES_FILE = "asked"


@dataclass(frozen=True, slots=True)
class MetricsFormat:
    """Text format of metrics: file suffix, content type, last line, and the function that renders the metrics."""

    suffix: str
    content_type: str
    final_line: str
    render_registry: Callable[[CollectorRegistry], bytes]


PROMETHEUS_TEXT = MetricsFormat(".prom", CONTENT_TYPE_PLAIN_0_0_4, "", generate_latest)
_write_open = partial(openmetrics.generate_latest, escaping=openmetrics.ALLOWUTF8)  # keeps the colons in vLLM's names
OPENMETRICS = MetricsFormat(".openmetrics", openmetrics.CONTENT_TYPE_LATEST, "# EOF\n", _write_open)
FORMATS = (PROMETHEUS_TEXT, OPENMETRICS)


@dataclass(frozen=True, slots=True)
class MetricsAddress:
    """Host and port that serve one job's metrics. The driver chooses them and passes them to the job's actors."""

    job: str
    host: str
    port: int

    @classmethod
    def from_environment(
        cls, job: str, *, local: bool, environment: Mapping[str, str] = os.environ
    ) -> MetricsAddress | None:
        """Return the address that the environment variables set; None if the port is 0.

        The default port is DEFAULT_PORT. The default host is loopback if the cluster is `local`, else all interfaces.
        """
        port = metrics_port(environment)
        host = environment.get(HOST) or ("127.0.0.1" if local else "0.0.0.0")
        return cls(job, host, port) if port else None

    @property
    def folder(self) -> Path:
        """Folder on this node for the metrics files that this port serves. Each user has a separate folder."""
        return Path(tempfile.gettempdir()) / f"agent-rft-metrics-{os.getuid()}-{self.port}"


def metrics_port(environment: Mapping[str, str] = os.environ) -> int:
    """Return the port in AGENT_RFT_METRICS_PORT, or DEFAULT_PORT if the variable is not set. Port 0 turns metrics off.

    Raises:
        UserError: The variable does not contain a valid port.
    """
    text = environment.get(PORT) or str(DEFAULT_PORT)
    if not text.isdecimal() or int(text) > 65535:
        raise UserError(f"{PORT} must be a port from 0 to 65535, got {text!r}; 0 turns metrics off")
    return int(text)


class Telemetry:
    """Exporter of one process's metrics.

    It exports the metrics of `recorder`, and all metrics that are registered with prometheus_client: vLLM's metrics,
    and the memory and CPU time of the process.
    """

    def __init__(self, address: MetricsAddress, process: str, period_s: float = PERIOD_S) -> None:
        """Start the export thread; `process` is the process's name in the job, such as `driver` or `engine-0`."""
        disable_created_metrics()  # type: ignore[no-untyped-call] # timestamps that only OpenMetrics uses
        self.recorder = Recorder()
        self.recorder.record("process_up")
        self._address = address
        self._period_s = period_s
        self._labels = ",".join(
            f'{name}="{_escape(value)}"' for name, value in (("job", address.job), ("process", process))
        )
        stem = re.sub(r"[^\w.-]+", "-", f"{address.job}-{process}")[:150]
        self._file = address.folder / stem  # without suffix; overwrites the file of a dead process with the same name
        self._port: _MetricsServer | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="telemetry")
        self._thread.start()

    def close(self) -> None:
        """Write the metrics one last time, wait for the next scrape if it is due soon, then release the port."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                ended = self._ended.is_set()
                try:
                    create_private_folder(self._address.folder)
                    self._take_port()
                    self._write()
                except Exception as error:  # noqa: BLE001 - such as a full disk; the thread must survive it
                    self.recorder.count_error(error)
                if ended:
                    break
                self._ended.wait(self._period_s)
        finally:
            if self._port is not None:
                self._port.close_after_answer()

    def _take_port(self) -> None:
        if self._port is None:
            with suppress(OSError):  # another process holds the port
                self._port = _MetricsServer(self._address)

    def _write(self) -> None:
        for metrics_format in FORMATS:
            text = "".join(self._render(metrics_format, registry) for registry in (REGISTRY, self.recorder.registry))
            temporary = Path(f"{self._file}.tmp")
            temporary.write_text(add_labels(text, self._labels))
            temporary.replace(f"{self._file}{metrics_format.suffix}")
        if self._port is not None:
            delete_stale_files(self._address.folder, time.time())

    def _render(self, metrics_format: MetricsFormat, registry: CollectorRegistry) -> str:
        try:
            return metrics_format.render_registry(registry).decode()
        except Exception as error:  # noqa: BLE001 - whatever a library raises
            self.recorder.count_error(error)
            return ""


def start_telemetry(address: MetricsAddress | None, process: str) -> Recorder:
    """Start exporting this process's metrics, and return the recorder. Without an address, nothing is exported.

    Use this in processes that never call `Telemetry.close`, such as actors.
    """
    return Recorder() if address is None else Telemetry(address, process).recorder


# -- text --------------------------------------------------------------------------------------------------------------


def add_labels(text: str, labels: str) -> str:
    """Insert `labels` before the other labels of each sample in a metrics text."""
    return "".join(
        line if line.startswith("#") else _label_sample(line, labels) for line in text.splitlines(keepends=True)
    )


def _label_sample(sample: str, labels: str) -> str:
    end = re.match(r"[\w:]+", sample)
    assert end is not None, sample
    name, rest = sample[: end.end()], sample[end.end() :]
    return f"{name}{{{labels},{rest[1:]}" if rest.startswith("{") else f"{name}{{{labels}}}{rest}"


def merge_texts(texts: Iterable[tuple[str, bool]]) -> str:
    """Merge the metrics of several processes, each rendered as text, into one text.

    Each metric family occurs only once in the result, as the format requires. Each text comes with a flag that is True
    if its process is silent. Gauges of silent processes are dropped. Comments other than HELP and TYPE, such as
    OpenMetrics' EOF, are dropped, too.
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


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


# -- files and port ----------------------------------------------------------------------------------------------------


def read_metric_files(
    folder: Path, now: float, metrics_format: MetricsFormat = PROMETHEUS_TEXT
) -> Iterator[tuple[str, bool]]:
    """Yield the metrics text of each process, and whether the process has been silent for SILENT_S or longer."""
    for path in sorted(folder.glob("*" + metrics_format.suffix)):
        with suppress(OSError):
            age_s = now - path.stat().st_mtime
            if age_s < DELETE_AFTER_S:
                yield path.read_text(), age_s >= SILENT_S


def _read_scrape_times(folder: Path) -> tuple[float, float]:
    """Return the times of this node's last two scrapes, whichever process answered them."""
    try:
        before, latest = map(float, (folder / SCRAPES_FILE).read_text().split())
    except (OSError, ValueError):  # no scrape yet, or the file is being written
        return 0.0, 0.0
    return before, latest


def delete_stale_files(folder: Path, now: float) -> None:
    """Delete the files of processes that have been silent for DELETE_AFTER_S or longer."""
    for path in folder.iterdir():
        with suppress(OSError):  # another process may delete the same file
            if now - path.stat().st_mtime >= DELETE_AFTER_S:
                path.unlink()


class _MetricsServer(ThreadingHTTPServer):
    """HTTP server on the node's metrics port; answers in background threads until it is closed.

    Raises:
        OSError: Another process holds the port.
    """

    daemon_threads = True

    def __init__(self, address: MetricsAddress) -> None:
        super().__init__((address.host, address.port), _Handler)
        self.folder = address.folder
        self._answered = threading.Event()
        threading.Thread(target=self.serve_forever, args=(STOP_S,), daemon=True, name="metrics-port").start()

    def answer(self, metrics_format: MetricsFormat) -> bytes:
        now = time.time()
        text = merge_texts(read_metric_files(self.folder, now, metrics_format)) + metrics_format.final_line
        with suppress(OSError):
            _, latest = _read_scrape_times(self.folder)
            (self.folder / SCRAPES_FILE).write_text(f"{latest} {now}")
        self._answered.set()
        return text.encode()

    def close_after_answer(self) -> None:
        """Close the port. If scrapes are regular and the next scrape is due soon, answer it first."""
        self._answered.clear()
        before, latest = _read_scrape_times(self.folder)
        due_s = latest + 1.5 * (latest - before) - time.time()
        if latest - before < MAX_SCRAPE_INTERVAL_S and due_s > 0:
            self._answered.wait(due_s)
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_S
    server: _MetricsServer

    def do_GET(self) -> None:
        is_found = self.path.partition("?")[0] == "/metrics"
        metrics_format = (
            OPENMETRICS
            if OPENMETRICS.content_type.partition(";")[0] in self.headers.get("Accept", "")
            else PROMETHEUS_TEXT
        )
        body = self.server.answer(metrics_format) if is_found else b"see /metrics\n"
        self.send_response(HTTPStatus.OK if is_found else HTTPStatus.NOT_FOUND)
        self.send_header("Content-Type", metrics_format.content_type if is_found else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass
