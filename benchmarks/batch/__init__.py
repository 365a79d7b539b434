"""The parts of ``bench_batch.py``, each measured in a process of its own."""
