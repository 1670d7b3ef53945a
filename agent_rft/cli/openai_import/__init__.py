"""Jobs made with OpenAI's fine-tuning API, turned into job files and rows of one's own.

Nothing here calls one of our servers, and nothing that was half read is left on the disk.
"""
