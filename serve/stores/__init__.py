"""The server's persistent state: files, jobs, models, API keys and encrypted secrets, on SQLite or PostgreSQL.

Stores only record state, and allow or refuse changes of a job's state. They do not decide what happens to a job next.
They contain no HTTP and no Ray code.
"""
