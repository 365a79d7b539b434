"""Sets Triton's interpreter on before any kernel of this folder's tests is imported."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"
