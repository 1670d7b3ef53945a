"""The report of a run as one page: its curves, its changes, and each row with its rollouts."""
