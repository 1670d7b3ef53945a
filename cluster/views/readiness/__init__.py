"""What a look before training found, printed and as a page.

What it means is decided in `trainer.readiness`, not here.
"""
