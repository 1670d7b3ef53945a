"""The processes of an API job, driver and check, the check of a draft, and what connects them to the store."""
