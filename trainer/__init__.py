"""What trains: the algorithm, the model and the loop.

It knows neither Ray nor HTTP nor an engine; it reaches them only through `agent_rft.protocols`.
"""
