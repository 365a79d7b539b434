"""The operator's implementations: NumPy reference (``reference``), C++ for CPUs (``cpu``, ``ort``).

``ort_library_path()`` names the shared library that ONNX Runtime loads, ``tensorrt_library_path()``
the one that TensorRT loads.
"""

from __future__ import annotations

from minicache.plugins.library import ort_library_path, tensorrt_library_path

__all__ = ["ort_library_path", "tensorrt_library_path"]
