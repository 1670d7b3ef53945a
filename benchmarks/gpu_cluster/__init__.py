"""What is measured first on a machine with GPUs and everything installed: `make gpu`.

Each part is a command that runs in its own process with a time limit and prints one JSON line a figure: a benchmark of
the folder above with settings for GPUs, or a module of this package. `results.jsonl` keeps the lines, so a second run
does only what is missing. On CPUs with `--tiny` all of it runs in minutes, so that the first minute on a GPU is not
spent on a typo. Nothing of this has run on a GPU yet.
"""
