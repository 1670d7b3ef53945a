"""Operator's configuration: the networks, models and resources that jobs may use, and the names of models.

It sets no setting of a job, and no job can change it.
"""
