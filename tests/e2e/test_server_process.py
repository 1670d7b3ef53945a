"""`agent-rft serve` as a process: its first key, requests over a real socket, a port in use, and a clean shutdown."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import openai
import psutil
import pytest

from tests.e2e.command import AGENT_RFT
from tests.support.fakes_http import unused_port
from tests.support.sockets import check_ports

START_S = 120.0


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """A list for the processes that a test starts, which are ended after the test."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=START_S)


def command(folder: Path, port: int) -> list[str]:
    return [AGENT_RFT, "serve", "--folder", str(folder), "--port", str(port)]


def start(folder: Path, port: int = 0, metrics_port: int = 0) -> tuple[subprocess.Popen[str], str, str]:
    """Returns the process, the key that it printed (only at a folder's first start) and its URL.

    It starts in a folder with a user's own modules, which have the names of our packages.
    """
    for name in ("trainer", "actors", "cluster", "serve"):
        (folder / f"{name}.py").write_text("raise ImportError('not ours')\n")
    scratch = folder.parent / "a-temporary-folder-with-a-long-path-as-on-slurm"
    scratch.mkdir(exist_ok=True)
    environment = {**os.environ, "AGENT_RFT_METRICS_PORT": str(metrics_port), "TMPDIR": str(scratch)}
    environment.pop("AGENT_RFT_METRICS_HOST", None)
    process = subprocess.Popen(
        command(folder, port),
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # a suite under nohup ignores it
    )
    assert process.stdout is not None
    key, url = "", ""
    for line in process.stdout:
        if "API key" in line:
            key = line.split()[-1]
        if line.startswith("serving at"):
            url = line.split()[2]
            break
    assert url, "the server ended before it served"
    return process, key, url


def test_a_server_starts_serves_stops_and_starts_again(tmp_path: Path, serve: list[subprocess.Popen[str]]) -> None:
    metrics_port = unused_port()
    process, key, url = start(tmp_path, metrics_port=metrics_port)
    serve.append(process)
    listeners = [c.laddr for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert {address.ip for address in listeners if address.port == metrics_port} == {"127.0.0.1"}
    check_ports(process.pid, "serve")
    client = openai.OpenAI(api_key=key, base_url=url, max_retries=0)
    made = client.files.create(file=("rows.jsonl", b"{}\n" * 100_000), purpose="fine-tune")
    assert client.files.content(made.id).read() == b"{}\n" * 100_000
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="sk-rft-wrong").files.list()

    port = int(url.split(":")[2].split("/")[0])
    another = tmp_path.with_name("another-server")
    in_use = f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another --port"
    for folder, refusal in ((another, in_use), (tmp_path, f"is used by process {process.pid} on")):
        second = subprocess.run(command(folder, port), stderr=subprocess.PIPE, text=True, timeout=START_S)
        assert second.returncode == 1 and "Traceback" not in second.stderr
        assert refusal in second.stderr

    assert process.stdout is not None
    process.stdout.close()  # nobody reads its output any more
    process.send_signal(signal.SIGHUP)
    assert process.wait(START_S) == 0
    process, no_key, url = start(tmp_path)
    serve.append(process)
    assert no_key == ""  # the first one is still valid
    client = openai.OpenAI(api_key=key, base_url=url, max_retries=0)
    assert [file.id for file in client.files.list()] == [made.id]
