"""Runs test cases on copies of the kernels: ``python -m tests.plugins.triton.fault_runner``.

Reads lines of JSON, ``[case, folder]``: ``folder/triton`` is the copy. Writes a line of JSON each,
``[case, outcome]``: ``same``, ``differs: ...`` where a comparison with the reference failed, or
``error: ...`` where anything else did. All cases share one start of Triton's interpreter, and each
runs in a fork of its own, so that no kernel of another copy is loaded.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback

import minicache.plugins
import minicache.plugins.reference  # so that forks need not load it
import tests.plugins.subspace_text
import tests.plugins.triton.interpreter  # noqa: F401

GUARDS = ("launch",)  # what fails there is no comparison with the reference


def outcome(case: str, folder: str) -> str:
    """Runs a case on a copy, in this process."""
    loaded = [name for name in sys.modules if name.startswith("minicache.plugins.triton")]
    assert not loaded, f"{loaded} were loaded before the copy"
    minicache.plugins.__path__.insert(0, folder)
    cases = importlib.import_module("tests.plugins.triton.fault_cases")
    kernels = importlib.import_module("minicache.plugins.triton")
    assert str(kernels.__file__).startswith(folder), kernels.__file__
    try:
        cases.CASES[case]()
    except AssertionError as error:
        frames = traceback.extract_tb(error.__traceback__)
        kind = "error" if any(frame.name in GUARDS for frame in frames) else "differs"
        return f"{kind}: {str(error)[:300]}"
    except BaseException as error:
        return f"error: {error!r}"[:300]
    return "same"


def main() -> None:
    """Forks for every line."""
    for line in sys.stdin:
        case, folder = json.loads(line)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                said = outcome(case, folder)
            except BaseException as error:
                said = f"error: {error!r}"
            print(json.dumps([case, said]), flush=True)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
