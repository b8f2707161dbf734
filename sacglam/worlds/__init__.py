"""Other people's environments as ours. The registry finds them by name, and nothing imports them."""
