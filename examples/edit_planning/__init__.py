"""Example: an agent predicts which files a change will touch, before it edits any of them."""
