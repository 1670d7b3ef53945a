"""An agent says which files a change will touch, before it edits any of them."""
