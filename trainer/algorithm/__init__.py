"""The RL algorithm as pure functions: reward, advantage, loss, objective and learning rate schedule.

Contains no state, I/O or concurrency; formulas cite their source.
"""
