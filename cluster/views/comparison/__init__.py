"""Comparison of evaluations of the same rows: loading, statistics, terminal output, HTML page and image.

The other views do not depend on this package.
"""
