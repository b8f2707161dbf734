"""Gradient updates."""
