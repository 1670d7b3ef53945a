"""From messages and tools to token ids: chat templates, model families, histories.

No torch and no training logic here: engines, checks and servers render with it as well.
"""
