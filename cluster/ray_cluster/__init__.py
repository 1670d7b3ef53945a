"""The Ray cluster: connecting to or starting one, reserving a job's resources, the Ray job's status message.

The only room that may use Ray's private modules. No training, no stores, and no planning: a placement is given to it.
"""
