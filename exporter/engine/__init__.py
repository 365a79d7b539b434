"""Builds TensorRT engines of exported folders: ``minicache build-engine``.

``builder`` drives it; the build itself runs in a process of its own (``worker``), because TensorRT
can crash on a graph that it does not like, and then the user gets our sentence, not a signal.
"""
