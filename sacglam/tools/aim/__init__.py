"""Runs in Aim, filled from the files that every run leaves."""
