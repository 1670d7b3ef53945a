"""Settings of users and operators, and the readers that convert their files to validated models.

Does not import torch, Ray or an HTTP library, so that `agent-rft check` reports errors immediately.
"""
