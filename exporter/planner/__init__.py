"""Chooses groups, code heads and bits of the ``subspace`` mode; ``search`` is the entrance."""
