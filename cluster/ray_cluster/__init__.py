"""The Ray cluster: connecting to or starting one, reserving a job's resources, the Ray job's status message.

Only `ray_internals` uses undocumented parts of Ray. No training, no stores, no planning: a placement is given to it.
"""
