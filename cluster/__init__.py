"""One run, from its job to its result: planning, checks, the driver, records and views."""
