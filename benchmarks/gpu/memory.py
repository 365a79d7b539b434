"""Memory of nodes on a device (or, for Triton's interpreter, on the host) that shows misuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from minicache.plugins.gpu_plan import PlacedTensor

Array = npt.NDArray[Any]
GUARD = 1024  # bytes on either side of a buffer
CANARY = 0xFF  # NaN in every float type, -1 in every signed one


class Buffer:
    """An array on a device, between canaries.

    Attributes:
        name: of the tensor, for messages.
        dtype: NumPy's.
        shape: of the array.
    """

    def __init__(self, name: str, array: Array, device: str) -> None:
        self.name, self.dtype, self.shape = name, array.dtype, array.shape
        self._size = array.nbytes
        self._memory = torch.full((self._size + 2 * GUARD,), CANARY, dtype=torch.uint8).to(device)
        self.write(array)

    @property
    def _inner(self) -> torch.Tensor:
        return self._memory[GUARD : GUARD + self._size]

    @property
    def placed(self) -> PlacedTensor:
        """As the plan takes it."""
        return PlacedTensor(self.dtype.name, self.shape, self._memory.data_ptr() + GUARD)

    @property
    def array(self) -> Array:
        """A copy of the contents on the host."""
        host: Array = self._inner.cpu().numpy()
        return host.copy().view(self.dtype).reshape(self.shape)

    def write(self, array: Array) -> None:
        """Replaces the contents; the address stays."""
        plain = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._inner.copy_(torch.from_numpy(plain.copy()))

    def check(self) -> None:
        """Raises AssertionError where a kernel wrote beside the buffer."""
        outside = torch.cat([self._memory[:GUARD], self._memory[GUARD + self._size :]])
        assert bool((outside == CANARY).all()), f"a kernel wrote beyond {self.name}"


def poisoned(name: str, shape: tuple[int, ...], dtype: Any, device: str) -> Buffer:
    """A buffer for kernels to write: NaN, -1 or 255."""
    array = np.empty(shape, dtype)
    array.view(np.uint8)[...] = CANARY
    return Buffer(name, array, device)
