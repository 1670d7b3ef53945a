"""Records of a run on disk: the run folder, rollout files and their index, checkpoint storage, and redaction.

The package has only formats and files: no Ray, no server's database, and no decision about what is worth recording.
"""
