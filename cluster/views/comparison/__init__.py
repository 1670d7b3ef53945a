"""Evaluations of the same rows side by side: found, compared, printed, as a page, as an image.

The other views know nothing of it.
"""
