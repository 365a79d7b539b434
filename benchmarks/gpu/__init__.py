"""The parts of ``gpu_check.py``: everything that the GPU path can be asked on a machine with a GPU.

Reading order: ``checkout`` (packages without an installation), ``native`` (plan and launcher in
C++), ``packs`` (compiled kernels), ``device_group`` (a group on a GPU), ``correctness``; then
``formats``, ``layers`` (what is timed), ``timing``, ``speed``, ``sweep``.
"""
