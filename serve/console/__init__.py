"""The console: a page in the browser that talks only to the public API.

`app` is its source (Svelte and TypeScript), `bundle` what `make console` builds of it; here it is served, and browsers
get their sessions.
"""
