"""Operator's configuration: the networks, models and resources that jobs may use, and the names of models.

The configuration contains no settings of jobs, and no job can change the configuration.
"""
