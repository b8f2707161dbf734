"""The folder of a run, its checkpoints, and what it reports while it runs."""
