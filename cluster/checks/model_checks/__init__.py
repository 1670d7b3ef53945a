"""Checks of a job's model: its folder, chat template, tool parser and LoRA targets, and the calls in rows."""
