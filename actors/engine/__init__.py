"""The vLLM engine: sampling, slots, parsing of turns, structured decoding and chat requests.

Nothing that knows tools, graders or the episode loop: an engine turns tokens into tokens.
"""
