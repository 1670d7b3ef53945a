"""Settings of users and operators, and the readers that turn their files into validated models.

Imports no torch, Ray or HTTP library, so that `agent-rft check` reports errors immediately.
"""
