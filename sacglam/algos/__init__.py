"""The learning rules: pure equations and the losses built of them."""
