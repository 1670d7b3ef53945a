"""Command `python -m agent_rft.cluster.ray_cluster.read_ahead`: reads the files that `ray start` will need.

`ray start` gives up if the node does not register within 30 s (Ray's `raylet_start_wait_time_s`). The node registers
after its agents have imported about 2,000 files, which takes longer with a cold disk cache. Therefore each pod first
runs this command in an init container.
"""

from __future__ import annotations

from agent_rft.cluster.ray_cluster.ray_internals import read_node_programs

if __name__ == "__main__":
    read_node_programs()
