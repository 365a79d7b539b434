"""One optimisation profile of an engine, with its inputs and outputs at fixed addresses."""

from __future__ import annotations

from typing import Any

from minicache.runtime.model import call_failed
from minicache.runtime.tensorrt_engine import TensorrtEngine


class TensorrtContext:
    """An execution context of one profile; TensorRT hears of shapes and addresses that changed.

    A decode step changes neither: it is one call of TensorRT.

    Args:
        engine: whose context.
        profile: index of the profile in the engine.
        memory: address of the engine's ``activation_bytes``.
        stream: handle of the stream that everything runs on.

    Raises:
        SessionError: TensorRT makes no context, or does not take the profile.
    """

    def __init__(self, engine: TensorrtEngine, profile: int, memory: int, stream: int) -> None:
        self._engine, self._stream = engine, stream
        self._context = engine.context(profile, memory, stream)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}

    def _must(self, done: Any) -> None:
        if not done:
            raise call_failed(self._engine.name, self._engine.reason())

    def reshape(self, name: str, shape: tuple[int, ...]) -> None:
        """Gives an input its shape.

        Raises:
            SessionError: TensorRT refuses it.
        """
        if self._shapes.get(name) != shape:
            self._must(self._context.set_input_shape(name, shape))
            self._shapes[name] = shape

    def bind(self, name: str, address: int) -> None:
        """Tells where an input or output lies.

        Raises:
            SessionError: TensorRT refuses it.
        """
        if self._addresses.get(name) != address:
            self._must(self._context.set_tensor_address(name, address))
            self._addresses[name] = address

    def address(self, name: str) -> int:
        """Where TensorRT takes an input or output to be."""
        return int(self._context.get_tensor_address(name))

    def run(self) -> None:
        """Queues a run on the stream.

        Raises:
            SessionError: TensorRT refuses it.
        """
        self._must(self._context.execute_async_v3(self._stream))
