"""The two training loops and their parts: buffer, evaluation, alarms and checkpoints.

Uses no torch, Ray or HTTP: engines, learner and graders are called through `agent_rft.loop_protocols`.
"""
