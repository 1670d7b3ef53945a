"""One run of a job in a driver process: starts the actors, trains or grades, reports, and cleans up at the end.

Works on one prepared job, with or without a server, so nothing of the API, its stores or its queue belongs here.
"""
