"""Import of jobs from OpenAI's fine-tuning API as job files and rows.

An import never calls an agent-rft server. If an import fails, it leaves no files behind.
"""
