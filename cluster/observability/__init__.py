"""Dashboards and alerts over `agent_rft.metrics`, and their files for Prometheus, Grafana and Kubernetes.

This package records no metrics. Training and serving code may not import it.
"""
