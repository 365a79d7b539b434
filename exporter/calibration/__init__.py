"""Calibration of the ``subspace`` mode: from texts to the tables that the op takes.

Reading order: ``calibrate`` (one pass over the text), ``moments`` and ``gather`` (what is kept of
it), ``calibration`` (the result, from which any codec follows), ``matching``, ``klt``,
``allocation``, ``quantiser`` (its steps), ``codec`` (the tables).
"""
