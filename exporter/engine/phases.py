"""Shows the phases of a build as TensorRT enters them: each a progress display of its own."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any

from minicache.runtime.progress import Step, progress

SHOWN_DEPTH = 2  # deeper ones come by the hundred


class Phases:
    """The display; use it as a context manager.

    Args:
        quiet: show nothing.

    Attributes:
        current: what is being done, in words.
    """

    def __init__(self, quiet: bool) -> None:
        self.current = "reading the graph"
        self._quiet = quiet
        self._depths: dict[str, int] = {}
        self._step: Step | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Phases:
        """Begins with the phase before TensorRT's own."""
        self._show(self.current, None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends what is shown."""
        self._stack.__exit__(kind, error, trace)

    def take(self, content: dict[str, Any]) -> None:
        """Takes one line of the building process (``worker``)."""
        if "phase" in content:
            depth = self._depths.get(content["inside"], -1) + 1
            self._depths[content["phase"]] = depth
            if depth <= SHOWN_DEPTH:
                self._show(content["phase"].lower(), content["of"])
        elif "step" in content and content["step"].lower() == self.current and self._step:
            self._step.advance()

    def _show(self, label: str, total: int | None) -> None:
        self._stack.close()
        self._stack = ExitStack()
        self.current = label
        shown = progress(label, total=total, quiet=self._quiet)
        self._step = self._stack.enter_context(shown)
