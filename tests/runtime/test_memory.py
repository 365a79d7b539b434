"""Decoding neither grows the process nor moves the state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from minicache.runtime.session import Session
from tests.runtime.tiny_model import VARIANTS

STEPS = 500


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    pytest.skip("no VmRSS on this system")


@pytest.mark.slow
@pytest.mark.usefixtures("ort_library")
@pytest.mark.parametrize("variant", VARIANTS)
def test_decode_steps_need_no_memory(tiny_folder: Callable[..., Path], variant: str) -> None:
    with Session(tiny_folder(variant), threads=1) as session:

        def decode(steps: int) -> None:
            for step in range(steps):
                if step % session.capacity == 0:
                    session.reset()
                session.forward(np.array([[step % 256]]), logits="last")

        decode(50)  # arenas and thread pools settle
        before, pointers = resident_bytes(), session.state_pointers()
        decode(STEPS)
        # Less than one copy of the state per hundred steps, and far less than one per step.
        assert resident_bytes() - before < max(512 * 1024, STEPS // 100 * session.cache_bytes)
        assert session.state_pointers() == pointers
