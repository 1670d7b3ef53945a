"""Dashboards and alerts over `agent_rft.metrics`, and the Prometheus, Grafana and Kubernetes files.

Nothing here records a metric, and no training or serving code may import it.
"""
