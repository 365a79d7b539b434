"""Writes decoders of any size with random weights, for ``bench_large_model.py``.

Reading order: ``decoder`` (the files), ``sizes`` (what all forms share), ``decomposed`` and
``group_query`` (the graphs), ``graph`` (weights streamed to disk).
"""
