"""The two training loops and what only they use: buffer, evaluation, alarms and checkpoints.

No torch, Ray or HTTP here: engines, learner and graders are called through `agent_rft.protocols`.
"""
