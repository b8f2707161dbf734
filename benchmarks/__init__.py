"""Measurements of sacglam's speed and memory; each prints a JSON list of rows (docs/results/performance.md)."""
