"""What a grader is: the protocol, the sample that it sees, and templates; below it, one file per kind.

Nothing that knows a job's whole set of graders or runs them in an actor: that is `agent_rft.actors.grading`.
"""
