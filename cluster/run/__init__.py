"""One run of a job in a driver process: starts the actors, trains or grades, reports, and cleans up at the end.

The package runs one prepared job, with or without a server. So it must not depend on the API, its stores or the job
queue.
"""
