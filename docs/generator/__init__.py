"""The files in git that are generated from the code: the reference pages, and alerts and dashboards for Kubernetes.

Each module is one topic. Its function `pages()` returns the text of each page by its path below docs/reference, or its
function `files()` the text of each file by its path below the repository's root.
"""
