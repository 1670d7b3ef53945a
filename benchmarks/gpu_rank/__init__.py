"""Measures the real learner rank (`trainer/learner/learner_rank.py`) on one GPU: `python3 -m benchmarks.gpu_rank`.

`make gpu-rank` does the same; see benchmarks/README.md. The machine needs torch 2.11 or later, transformers 5.17 or
later, and the wheels of `make gpu-rank-wheels` for what else it lacks, such as DeepSpeed. It needs neither Ray nor
vLLM. On a GPU each figure has a process of its own.
"""
