"""The two training loops and their parts: buffer, evaluation, alarms and checkpoints.

This package uses no torch, Ray or HTTP: it calls engines, learner and graders through `agent_rft.loop_protocols`.
"""
