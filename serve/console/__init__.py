"""Console: a browser page that calls only the public API.

The folder `app` contains the console's source (Svelte and TypeScript). `make console` builds the folder `bundle` from
it. This package serves the bundle and opens browser sessions.
"""
