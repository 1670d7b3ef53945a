"""Command `python -m agent_rft.cluster.ray_cluster.read_ahead`: reads the files that `ray start` needs, before it runs.

`ray start` gives up if its node has not registered after 30 s, a constant of Ray (`raylet_start_wait_time_s`). The node
registers after its agents have started, and the agents import about 2,000 files. With a cold disk cache, this took more
than 30 s: all pods ended after 74 s and were replaced. Therefore each pod first runs this module in an init container.
"""

from __future__ import annotations

from agent_rft.cluster.ray_cluster.ray_internals import read_node_programs

if __name__ == "__main__":
    read_node_programs()
