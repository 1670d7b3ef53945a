"""An engine that several jobs share: the actor, a job's client of it, and who still uses it.

Nothing that an engine of one job needs.
"""
