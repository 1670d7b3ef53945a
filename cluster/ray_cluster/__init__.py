"""Access to a Ray cluster: connecting to or starting it, reserving a job's resources, and the Ray job's status.

Only `ray_internals` uses undocumented parts of Ray. This package does not train, store or plan; its callers pass the
placement.
"""
