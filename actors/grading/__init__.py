"""From a job's graders to running ones: factory, guards and the pool's actor.

Nothing that knows how a grader computes its grade: that is `agent_rft.actors.graders`.
"""
