"""The five Grafana dashboards, each defined as a constant in a separate module, and the code that builds their JSON.

The package contains only queries for metrics and layouts of panels. It performs no I/O, and defines neither alerts nor
the configuration of Prometheus.
"""
