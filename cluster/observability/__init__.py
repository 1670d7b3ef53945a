"""Dashboards and alerts for the metrics in `agent_rft.metrics`, as files for Prometheus, Grafana and Kubernetes.

This package does not record metrics. Training and serving code must not import it.
"""
