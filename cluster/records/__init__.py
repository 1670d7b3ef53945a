"""Records of a run on disk: the run folder, rollout files and their index, checkpoint storage, and redaction.

The package defines file formats, and reads and writes the files. It does not use Ray or the server's database, and does
not decide what is recorded.
"""
