"""Consumers of a run's events: its metrics, its report, its traces, its stream, experiment trackers and plugins."""
