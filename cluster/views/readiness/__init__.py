"""What a look before training found, printed and as a page.

What it means is decided in `agent_rft.cluster.readiness`, not here.
"""
