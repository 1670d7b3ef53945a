"""Console: a browser page that calls only the public API.

`app` is its source (Svelte and TypeScript), and `make console` builds `bundle` from it. This package serves the bundle
and opens browser sessions.
"""
