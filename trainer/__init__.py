"""RL algorithm, model, training loops, and a single learner rank.

This package imports neither Ray nor HTTP nor engines. It uses them only through the protocols in
`agent_rft.loop_protocols`.
"""
