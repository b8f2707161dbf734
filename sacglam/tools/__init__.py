"""Instruments around the library: comparisons, profiles, dry runs, a check of the machine, Aim, and pretraining.

Nothing in the library imports them; import-linter checks it.
"""
