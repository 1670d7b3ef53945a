"""Metrics and traces of a process, and their export."""
