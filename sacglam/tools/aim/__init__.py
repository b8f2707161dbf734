"""Aim, the run explorer: its repository, and its pages, served on loopback."""
