"""``minicache estimate``: what a cache would take, from a model's geometry alone."""
