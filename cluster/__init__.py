"""Packages that handle one run, from its job to its result: checks, planning, the driver, records and views."""
