"""Engines and learner ranks, in this process or in others that Ray starts."""
