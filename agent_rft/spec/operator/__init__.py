"""Operator's configuration: the networks, models and resources that jobs may use, and the names of models.

The configuration contains no job settings, and no job can change it.
"""
