"""The RL algorithm as pure functions: reward, advantage, loss, objective and learning rate schedule.

No state, I/O or concurrency here; formulas name their source.
"""
