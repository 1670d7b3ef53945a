"""The form of a turn as grammars of constrained decoding, the same in rollouts and in serving.

Nothing that knows an engine: a family's forms and schemas come in.
"""
