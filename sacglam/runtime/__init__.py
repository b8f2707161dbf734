"""Where things run: in this process, or in others that Ray places."""
