"""An engine that several jobs share: its actor, a job's client, and the leases of the jobs.

Contains nothing that a dedicated engine needs.
"""
