"""Engines that several jobs share: the engine's Ray actor, the client in each job, and the leases of the jobs.

An engine that only one job uses does not need this package.
"""
