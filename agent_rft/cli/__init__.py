"""Commands of the `agent-rft` command line.

The modules of this package import Ray, torch and the database only inside the commands that need them, so that other
commands start quickly.
"""
