"""Measures the learner on one GPU: `python3 -m benchmarks.gpu`, or `make gpu-learner`. See benchmarks/README.md.

The machine needs torch 2.11 or later, transformers 5.17 or later, numpy and safetensors, and nothing else of ours:
no pydantic, Ray, vLLM or DeepSpeed. Each figure is a line of `results.jsonl`; finished figures are not measured again.
"""
