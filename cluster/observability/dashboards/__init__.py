"""The five Grafana dashboards, each a constant in a file of its own, and the builder of their JSON.

Only queries over listed metrics and their layout belong here: no I/O, no Prometheus configuration, no alerts.
"""
