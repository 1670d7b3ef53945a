"""RL algorithm, model, training loop and one learner rank.

This package imports neither Ray nor HTTP nor an engine; it reaches them only through `agent_rft.loop_protocols`.
"""
