"""Graders: the protocol, the sample that they receive, templates, and one module per kind.

Code that handles all graders of a job, or runs them in an actor, is in `agent_rft.actors.grading`.
"""
