"""RL algorithm, model, training loops, and a single learner rank.

This package does not import Ray, HTTP libraries or engines. It uses them only through the protocols in
`agent_rft.loop_protocols`.
"""
