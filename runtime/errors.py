"""The exceptions of the product: one family, so that callers can catch all of it or one kind.

Every message names what was wrong, where, which value was found, and what to do next.
The command line prints the message as one sentence; ``--debug`` shows the traceback.
"""

from __future__ import annotations

# A sentence beyond this quotes a name or path that nobody reads; both ends of it are kept.
LONGEST = 700


class MiniCacheError(Exception):
    """Base of every error that the product raises on purpose; ``exit_code`` is the CLI's.

    Args:
        message: the sentence; what is quoted in it may come from a hostile file, so that it is kept
            to one line of printable characters of bounded length.
    """

    exit_code = 2

    def __init__(self, message: str) -> None:
        shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in message)
        if len(shown) > LONGEST:
            shown = f"{shown[: LONGEST // 2]} [...] {shown[-LONGEST // 2 :]}"
        super().__init__(shown)


class ModelFileError(MiniCacheError):
    """A model file is missing, truncated, not ONNX, or lacks its external data."""


class UnsupportedModelError(MiniCacheError):
    """The graph is valid but not of a supported form; the message names form, node and remedy."""


class PlanError(MiniCacheError):
    """The requested plan contradicts itself or the model."""


class TextError(MiniCacheError):
    """A text is missing, too short, or does not fit the tokenizer."""


class OutputError(MiniCacheError):
    """An output cannot be written: it exists already, or the disk refuses."""


class PackageError(MiniCacheError):
    """An exported folder is incomplete, of another version, or was changed by hand."""


class CapacityError(MiniCacheError):
    """A call would put more tokens into the cache than its buffers hold."""


class SessionError(MiniCacheError):
    """A call of the runtime has arguments of the wrong shape, type or range."""


class StateFileError(MiniCacheError):
    """A saved state is missing, damaged, of another version, or another model's."""


class BatchFullError(SessionError):
    """No row of a batch is free; remove a request, or wait until one ends."""


class MissingDependencyError(MiniCacheError):
    """A library that this step needs is missing or of an unsupported version."""


class ParityError(MiniCacheError):
    """The rewritten graph does not compute what the original computes; nothing was written."""

    exit_code = 1


class EngineError(MiniCacheError):
    """TensorRT builds no engine of the graph, or crashed over it."""

    exit_code = 1
