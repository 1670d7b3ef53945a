"""Event stream of a run and its sinks: metrics, progress, report, step traces, experiment trackers and plugins."""
