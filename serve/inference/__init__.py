"""Serving models: chat completions, responses, best of n, and the applications that run the engines.

Only `model_apps` uses Ray.
"""
