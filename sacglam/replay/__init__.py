"""Hindsight relabelling and the replay buffer."""
