"""The graph forms of attention: one form, one file. ``find_attention`` asks each of them."""
