"""Execution of a job's graders: factory, guards, trial slots and the grader pool's actor.

The graders themselves are in `agent_rft.actors.graders`.
"""
