"""Commands of `agent-rft`.

Modules here import Ray, torch and the database only inside the commands that need them.
"""
