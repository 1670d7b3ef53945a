"""`run_untrusted`: an ordinary process, such as a user's server, runs code in a sandbox of its own."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent_rft import run_untrusted, untrusted
from agent_rft.actors.sandbox import standalone, untrusted_runner
from agent_rft.actors.sandbox.sandbox_config import RUN_LIMITS, runs_config
from agent_rft.actors.sandbox.sandbox_start import (
    Sandbox,
    SandboxFailed,
    SandboxReport,
    SandboxReportCache,
    probe_sandbox_methods,
)
from tests.support.paths import ROOT


def test_code_gets_its_files_and_input_and_nothing_of_this_machine(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("42")
    code = (
        "import os, socket, sys\nfrom solution import double\nprint(double(sys.stdin.read()))\n"
        f"print(os.path.exists({str(secret)!r}), 'SECRET' in os.environ, os.getpid() < 10)\n"
        "try:\n    socket.socket()\nexcept OSError:\n    print('no network')\n"
        "try:\n    open('/mine', 'w')\nexcept OSError:\n    print('read only')\n"
        f"os.symlink({str(secret)!r}, 'link')\nprint(os.path.exists('link'))\n"
    )
    run = run_untrusted(code, "ab", {"solution.py": "def double(text): return text * 2"})
    assert run.stdout.splitlines() == ["abab", "False False True", "no network", "read only", "False"], run.stderr
    assert (run.exit, run.killed, run.timed_out) == (0, False, False)
    assert 0 < run.cpu_s < 5 and 0 < run.wall_s < 10


def test_code_that_hangs_forks_or_takes_memory_is_ended_and_threads_do_not_wait_for_each_other() -> None:
    codes = {
        "hangs": "while True: pass",
        "forks": "import os, sys\nsys.stdout.write('x' * 10**7)\nwhile True:\n    os.fork()",
        "fills": "held = []\nwhile True: held.append(open(str(len(held)), 'wb').write(bytes(10**6)))",
        "honest": "print('fine')",
    }
    limits = {"wall_s": 0.6, "memory_bytes": 512 << 20, "output_bytes": 1000}
    # Only "fills" may reach its memory limit: a run that is killed for its memory loses its output.
    small = {name: limits | ({"memory_bytes": 64 << 20} if name == "fills" else {}) for name in codes}
    with ThreadPoolExecutor(len(codes)) as threads:
        runs = dict(
            zip(codes, threads.map(lambda name: run_untrusted(codes[name], limits=small[name]), codes), strict=True)
        )
    assert runs["hangs"].timed_out and runs["hangs"].killed
    assert len(runs["forks"].stdout) == 1000 and runs["forks"].exit != 0
    fills = runs["fills"]
    assert fills.over_memory or "OSError" in fills.stderr or "MemoryError" in fills.stderr, fills
    assert runs["honest"].stdout == "fine\n"


@pytest.mark.parametrize("name", ["../a", "/etc/a", "a/../b", "main.py", ""])
def test_a_file_outside_of_the_run_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match="files: "):
        run_untrusted("1", files={name: ""})
    with pytest.raises(ValueError, match=r"wall_s must be a number from 0\.1 to 120"):
        run_untrusted("1", limits={"wall_s": 1e9})


def test_a_sandbox_that_lacks_a_protection_runs_nothing_and_is_ended() -> None:
    config = runs_config("namespaces", RUN_LIMITS)
    assert config is not None
    request = untrusted.pack({"files": [], "limits": {}}, [b"1", b""])
    limits = untrusted_runner.check_request(request, RUN_LIMITS.memory_bytes)
    with pytest.raises(untrusted_runner.NotStarted, match="lacks protections: gravity"):
        standalone.run_in_sandbox(config | {"protections": ["gravity"]}, request, limits)
    with pytest.raises(untrusted_runner.NotStarted, match="No such file"):
        standalone.run_in_sandbox(
            config | {"launch": config["launch"] | {"binds": [["/none", "/none"]]}}, request, limits
        )


def test_without_a_sandbox_the_error_says_what_the_machine_needs() -> None:
    with pytest.raises(
        untrusted_runner.NotStarted, match="namespaces: denied: allow user namespaces, or install bubblewrap"
    ):
        standalone.make_runner_config(SandboxReport(None, {}, {"namespaces": "denied"}))


def test_a_late_sandbox_is_said_to_be_late_and_the_next_run_tries_again() -> None:
    def late(*_: object, **__: object) -> Sandbox:
        raise SandboxFailed("not loaded within 60 s", is_late=True)

    overloaded, fine = probe_sandbox_methods(late), SandboxReport("namespaces")
    with pytest.raises(untrusted_runner.NotStarted, match=r"not loaded within 60 s.*overloaded; try again") as error:
        standalone.make_runner_config(overloaded)
    assert "install" not in str(error.value)
    made = iter([overloaded, fine])
    reports = SandboxReportCache(lambda: next(made))
    assert [reports.get() for _ in range(3)] == [overloaded, fine, fine]


IGNORES = "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
REAPS = """
import os, threading, time
def reap():
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            time.sleep(0.001)
threading.Thread(target=reap, daemon=True).start()
"""
RUNS = """
from agent_rft import run_untrusted
burns = ["import os, time", "if os.fork() == 0:", "    while time.process_time() < 0.3: pass", "    os._exit(0)"]
burnt = run_untrusted(chr(10).join([*burns, "time.sleep(1)", "print('fine')"]))
ended = run_untrusted("held = bytearray(10**9)", limits={"memory_bytes": 64 << 20})
killed = run_untrusted("while True: pass", limits={"wall_s": 0.3})
print(burnt.stdout.strip(), burnt.exit, burnt.cpu_s > 0.25, ended.exit, killed.timed_out)
"""


@pytest.mark.parametrize("server", [IGNORES, REAPS])
def test_a_server_that_does_not_wait_for_its_children_gets_the_same_answers(server: str) -> None:
    done = subprocess.run([sys.executable, "-c", server + RUNS], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "fine 0 True 1 True\n", done.stderr
