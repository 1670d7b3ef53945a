"""Ledger: a small world of company reports in which an agent can learn without a GPU."""
