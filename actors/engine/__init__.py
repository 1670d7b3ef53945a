"""The vLLM engine: sampling, adapters and slots. Chats, grammars, vLLM's workers and shared engines have a room each.

Nothing that knows tools, graders or the episode loop: an engine turns tokens into tokens.
"""
