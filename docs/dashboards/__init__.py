"""Draws the Grafana dashboards as pictures, with Grafana's own components in a browser and the data of a Prometheus.

For the manual and the nightly tests: Grafana itself is not needed.
"""
