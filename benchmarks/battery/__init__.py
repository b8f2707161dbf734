"""Environments as varied as those of users, and measurements in them."""
