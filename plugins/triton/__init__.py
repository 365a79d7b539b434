"""GPU kernels of ``com.minicache::MiniCacheAttention`` in Triton.

One file per kernel, named after it, beside the device functions that several share. The kernels are
compiled ahead of time; the C++ plan (``plugins/gpu``) launches them. Nothing here runs them: tests
do so in Triton's interpreter. Importing this package imports no Triton.

Attention of a call is four launches: ``project`` maps queries to the code space, ``attend_codes``
(of pairs with deltas ``attend_pair``) and ``attend_exact`` attend to parts of the cache, ``finish``
merges the parts. The writer of a group then encodes what leaves the window (``gather``; ``align``,
``encode`` and, of deltas, ``encode_pair``; or ``project_joint`` and ``quantise_joint``), retains
tokens (``retain``, ``retain_store``, ``mark``; ``active`` before attention) and stores the new ones
(``store``). Every quantity that depends on lengths is computed on the device, so that grids depend
on shapes alone.
"""
