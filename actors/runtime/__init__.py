"""Shared runtime of all actors: calls, channels, metrics, timing and the watchdog.

This package imports no other package of `actors`.
"""
