"""Errors as OpenAI's API words them."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """An answer with an error status.

    Args:
        status: of HTTP.
        message: one sentence.
        param: the parameter that is to blame.
        code: for programs.
    """

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def content(self) -> dict[str, Any]:
        """The body of the answer."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        if self.status == 429:
            kind = "rate_limit_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def engine_error(reason: str) -> ApiError:
    """The engine failed while it worked on a request."""
    return ApiError(500, reason, code="engine_failed")
