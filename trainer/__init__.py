"""The algorithm, the model, the loop and one rank of the learner.

It knows neither Ray nor HTTP nor an engine; it reaches them only through `agent_rft.protocols`.
"""
