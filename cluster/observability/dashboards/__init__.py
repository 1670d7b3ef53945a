"""The five Grafana dashboards, each a constant in a separate file, and the builder of their JSON.

Contains only queries over listed metrics and their layout: no I/O, no Prometheus configuration, no alerts.
"""
