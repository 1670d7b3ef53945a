"""HTML report of a run: charts, changes, and each row with its rollouts."""
