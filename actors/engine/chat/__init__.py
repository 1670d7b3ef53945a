"""How a model writes and reads: its template and parser, found by a round trip, and vLLM's serving of chats.

Nothing that trains, and nothing that knows jobs.
"""
