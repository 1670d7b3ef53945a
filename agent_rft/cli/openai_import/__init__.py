"""Import of jobs from OpenAI's fine-tuning API as job files and rows.

Nothing here calls an agent-rft server, and a failed import leaves no files behind.
"""
