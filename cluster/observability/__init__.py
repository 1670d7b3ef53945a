"""Dashboards and alerts over the metrics of `trainer.metrics`, and the Prometheus, Grafana and Kubernetes files.

Nothing here records a metric, and no training or serving code may import it.
"""
