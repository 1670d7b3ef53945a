"""What a run writes to disk: the run folder, its rollout files, and the redaction of secrets in all that is shown.

Formats and files only: no Ray, no database, and no decision about what is worth recording.
"""
