"""Methods of others that use more than one layer, or a layer's input, to compare an export with.

They are no part of the product. Each is a ``CacheCodec`` (``minicache.exporter.baselines``), which
is run on an exact session and judged on the same documents as exports and the baselines there.

Reading order: ``catalogue`` (what there is), ``xquant``, ``xquant_cl``, ``xquant_reuse``, ``xkv``
and ``vfold`` (the methods), ``uniform``, ``latent``, ``alignment``, ``rows``, ``projections`` and
``counting`` (what they share), ``compare`` (runs all), ``verdict``, ``table`` and ``figure``
(what it shows).
"""
