"""Aim, the run explorer: filled from the files that every run writes, and served on loopback."""
