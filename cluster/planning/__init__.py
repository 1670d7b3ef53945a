"""Plans a job without starting anything: model and nodes in; placement, memory and context length out.

Nothing in here imports Ray, torch, transformers or a database.
"""
