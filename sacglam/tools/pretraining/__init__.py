"""How the built-in tiny language model is made: a corpus of plain word knowledge and random play, and its training."""
