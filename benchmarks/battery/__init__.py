"""Environments as different as users' are, and what is measured in them."""
