"""Output of a readiness check: terminal text, HTML page and JSON.

The verdict is computed in `agent_rft.cluster.readiness`.
"""
