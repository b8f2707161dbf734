"""The folder of a run, its checkpoints, and what it tells while it runs."""
