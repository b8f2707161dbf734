"""Hindsight relabelling and the replay buffer. Needs numpy only."""
