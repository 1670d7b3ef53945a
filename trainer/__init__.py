"""The trainer: data types, job settings, algorithms and training loops.

It knows neither Ray nor HTTP nor an engine; it reaches them only through `trainer.protocols`.
"""
