"""Adapters of other people's environments. The registry finds them by name; nothing imports them."""
