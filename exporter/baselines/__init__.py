"""Cache codecs of others, simulated on an exact session, to compare an export with.

Reading order: ``cache_codec`` (what a codec is), ``static_integer``, ``kivi`` and
``subspace_simulation`` (the codecs), ``simulated_cache`` (runs a model with one),
``prefill_snapshot`` (one prefill for many codecs), ``exact_vectors`` (what scales are fitted to).
"""
