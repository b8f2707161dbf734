"""Trackers: Aim, Weights & Biases, Trackio and TensorBoard, filled from the files that every run writes."""
