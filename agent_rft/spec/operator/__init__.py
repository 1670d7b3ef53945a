"""The operator's configuration: what jobs may reach and use, and the names of models.

A job's settings never come from here, and no job can change what is here.
"""
