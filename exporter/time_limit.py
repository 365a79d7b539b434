"""Ends a run in ONNX Runtime that takes longer than its graph can need.

A graph may loop as long as its numbers say: for years, where they are damaged.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from minicache.runtime.ort import load_onnxruntime

# Whatever is run, loading pages from a slow disk included.
SECONDS = 60.0
# Far below any processor that runs a language model.
OPERATIONS_PER_SECOND = 1e8


class TimeUpError(Exception):
    """The run was ended; ONNX Runtime's own error says that much only in words."""


def seconds_for(weight_bytes: int, tokens: int) -> float:
    """A limit for one call of a model: two operations per weight, of a byte each, and token."""
    return SECONDS + 2.0 * weight_bytes * tokens / OPERATIONS_PER_SECOND


@contextmanager
def limited(seconds: float) -> Iterator[Any]:
    """Yields ``RunOptions``; a run with them ends after some seconds.

    ONNX Runtime looks at them between operators, also inside of loops.

    Raises:
        TimeUpError: in place of ONNX Runtime's error, when the time was up.
    """
    options = load_onnxruntime().RunOptions()
    up = threading.Event()

    def stop() -> None:
        up.set()
        options.terminate = True

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield options
    except Exception as error:
        if up.is_set():
            raise TimeUpError(f"it runs for more than {seconds:.0f} s") from error
        raise
    finally:
        timer.cancel()
