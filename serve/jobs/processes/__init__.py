"""Processes that run and check the API's jobs (driver, job check, request check), and their access to the store."""
