"""Whether a run folder belongs to the job that is about to resume in it."""
