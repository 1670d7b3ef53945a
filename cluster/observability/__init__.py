"""Dashboards and alerts over the metrics of `trainer.metrics`, as code, and the files that are made of them."""
