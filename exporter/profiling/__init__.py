"""How alike the layers of a model are: ``minicache profile``, and part of every report."""
