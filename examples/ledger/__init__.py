"""Ledger: a small world of company reports in which an agent learns without a GPU."""
