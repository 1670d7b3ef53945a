"""What users and operators may configure, and how a file becomes a validated model.

No torch, Ray or HTTP here: `agent-rft check` imports this room to report mistakes at once.
"""
