"""One run of a job in a driver process: starts the actors, trains or grades, reports, and cleans up at the end.

It works on one prepared job, with or without a server, so it must not depend on the API, its stores or its queue.
"""
