"""The reference pages of the manual, generated from what is declared in the code.

Each module with a function `pages()` is one topic: it returns the text of each page by its path below docs/reference.
"""
