"""Processes of an API job (driver, job check, check before creation) and their connection to the store."""
