"""HTTP calls to one endpoint: retries, concurrency limit, circuit breaker, hedging and the SSRF guard.

This package treats all endpoints alike: it does not depend on tools, graders, sessions or Ray.
"""
