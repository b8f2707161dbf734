"""Makes the tiny language models: from random play and, for the built-in ones, plain word knowledge."""
