"""Model serving: chat completions, responses, best-of-n sampling, and the applications that run the engines.

Only `model_apps` uses Ray.
"""
