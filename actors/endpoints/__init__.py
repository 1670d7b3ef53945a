"""HTTP calls to one endpoint: retries, concurrency limit, circuit breaker, hedging and the SSRF guard.

Nothing that knows what an endpoint is for: no tools, graders or sessions, and no Ray.
"""
