"""Code and chat template that the examples with a small real model share."""
