"""`python -m agent_rft.cluster.ray_cluster.read_ahead` reads what `ray start` runs from the disk before it starts.

`ray start` gives up if its node has not registered after 30 s, a constant of Ray (`raylet_start_wait_time_s`), and the
node registers once its agents have started, which import some 2,000 files. A disk that is still cold took longer: all
pods ended after 74 s and were replaced. So each pod first runs this module in an init container.
"""

from __future__ import annotations

from agent_rft.cluster.ray_cluster.ray_internals import read_node_programs

if __name__ == "__main__":
    read_node_programs()
