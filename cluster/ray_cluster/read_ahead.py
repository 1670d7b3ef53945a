"""`python -m agent_rft.cluster.ray_cluster.read_ahead` reads what `ray start` runs from the disk before it starts.

`ray start` gives up if its node has not registered after 30 s, a constant of Ray (`raylet_start_wait_time_s`), and the
node registers once its agents have started, which import some 2,000 files. A disk that is still cold took longer: all
pods ended after 74 s and were replaced. So each pod first runs this module in an init container.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from ray._private.services import GCS_SERVER_EXECUTABLE, RAYLET_EXECUTABLE

MODULES = (
    "ray.scripts.scripts",
    "ray.dashboard.dashboard",
    "ray.dashboard.agent",
    "ray.dashboard.modules.aggregator.aggregator_agent",
    "ray.dashboard.modules.job.job_agent",
    "ray.dashboard.modules.reporter.reporter_agent",
    "ray._private.runtime_env.agent.runtime_env_agent",
)
"""The modules that the processes of a node import."""


def main() -> None:
    """Imports the modules and reads the programs."""
    for name in MODULES:
        import_module(name)
    for program in (GCS_SERVER_EXECUTABLE, RAYLET_EXECUTABLE):
        Path(program).read_bytes()


if __name__ == "__main__":
    main()
