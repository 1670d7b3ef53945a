"""One run, from a job to its end: planning, preflight, the driver, records and views."""
