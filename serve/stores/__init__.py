"""The server's persistent state: files, jobs, models, API keys and encrypted secrets, on SQLite or PostgreSQL.

No HTTP, no Ray and no decision about what happens to a job next: stores only record state and allow or refuse a move.
"""
