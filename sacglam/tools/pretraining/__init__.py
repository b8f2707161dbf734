"""How the built-in tiny language models are made: from a corpus of plain word knowledge and random play."""
