"""Experiment trackers: Weights & Biases, MLflow and TensorBoard, each imported only by a job that names it."""
