"""Dashboards and alerts over the metrics of `trainer.metrics`, and the Prometheus, Grafana and Kubernetes files built
from them. Nothing here records a metric, and no training or serving code imports it: it reads names and writes files.
"""
