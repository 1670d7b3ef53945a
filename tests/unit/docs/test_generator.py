"""The command that writes generated files, and the generated files in git."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent_rft.cluster.observability.monitoring_files import DASHBOARDS
from docs.generator.__main__ import main
from docs.generator.markdown import plain, table
from tests.support.paths import ROOT

FILES = {"docs/reference/a.md": "# A\u2192B\n", "k8s/monitoring/b.yaml": "b: 1\n"}

OTHER_MACHINE = {
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0",
    "PYTHONHASHSEED": "1",
    "COLUMNS": "20",
    "TERM": "dumb",
    "TZ": "Asia/Tokyo",
    "AGENT_RFT_CONFIG": "/nonexistent/agent-rft.yaml",
    "RAY_ADDRESS": "127.0.0.1:1",
}
"""Environment variables that must not change a generated file."""
GENERATE = "import json; from docs.generator.__main__ import generated; print(json.dumps(generated()))"


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    """The generated files by path, as another machine generates them; it takes ten seconds of CPU time."""
    command = [sys.executable, "-c", GENERATE]
    done = subprocess.run(command, cwd=ROOT, env=OTHER_MACHINE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made: dict[str, str] = json.loads(done.stdout)
    return made


def test_the_files_in_git_are_current_and_the_same_on_another_machine(
    files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert (main(["--check"], files), capsys.readouterr().out) == (0, "")


def test_the_alert_rules_and_dashboards_are_generated(files: dict[str, str]) -> None:
    monitoring = {path.removeprefix("k8s/monitoring/") for path in files if path.startswith("k8s/")}
    dashboards = {f"dashboards/{dashboard.name}.json" for dashboard in DASHBOARDS}
    assert monitoring == {"alerts.yaml", "RUNBOOK.md"} | dashboards


def test_check_names_each_stale_file_and_the_command_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([], FILES, tmp_path) == 0 and main(["--check"], FILES, tmp_path) == 0
    capsys.readouterr()
    page, rules = (tmp_path / path for path in FILES)
    page.write_text("# edited by hand\n")
    rules.unlink()
    assert main(["--check"], FILES, tmp_path) == 1
    reported = capsys.readouterr().out.splitlines()
    assert reported == [f"{path} is stale: run `python -m docs.generator`" for path in FILES]
    assert page.read_text() == "# edited by hand\n" and not rules.exists()
    assert main([], FILES, tmp_path) == 0
    assert {path: (tmp_path / path).read_text(encoding="utf-8") for path in FILES} == FILES


@pytest.mark.parametrize("folder", ["docs/reference", "k8s/monitoring/dashboards"])
def test_a_leftover_file_is_reported(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([], FILES, tmp_path)
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / folder / "old.md").write_text("")
    (tmp_path / "k8s" / "monitoring" / "podmonitor.yaml").write_text("")
    capsys.readouterr()
    for options in ([], ["--check"]):
        assert main(options, FILES, tmp_path) == 1
        assert capsys.readouterr().out == f"{folder}/old.md is not generated any more: delete it\n"


def test_text_of_the_code_is_no_markup() -> None:
    assert table(["a", "b"], [["x | y", "two\nlines"]]) == "| a | b |\n| --- | --- |\n| x \\| y | two lines |\n"
    assert plain("<tool> in `<tool>`") == "&lt;tool> in `<tool>`"
