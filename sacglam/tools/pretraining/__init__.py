"""How the tiny language models are made: from random play, and for the built-in ones plain word knowledge."""
