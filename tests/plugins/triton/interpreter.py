"""Runs GPU kernels on the CPU, in Triton's interpreter, on memory that shows misuse.

Importing this module skips the test file where triton or torch is missing. Import it before any
kernel. What Triton 3.9's interpreter does not tell or gets wrong, and what is done about it here:

* it checks no bounds: every ``Buffer`` lies between canaries that are NaN to whoever reads them,
  and ``launch`` compares them and all that a kernel must not write;
* bf16 numbers are bare uint16: arithmetic on them is garbage, rounding to them cuts off, and a dot
  multiplies the bits. Dots and conversions are corrected, other arithmetic raises;
* every call of a device function patches ``triton.language`` again, every integer operation is
  done twice for a check that is off, every type is looked up in a new table: not here;
* it knows no inline PTX: ``inline_ptx.py`` evaluates what the kernels use;
* ``tl.max`` passes over NaN, which a GPU does as well.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

os.environ["TRITON_INTERPRET"] = "1"
ml_dtypes = pytest.importorskip("ml_dtypes", reason="NumPy needs ml_dtypes for bf16")
torch = pytest.importorskip("torch", reason="Triton's interpreter needs torch tensors")
pytest.importorskip("triton", reason="the GPU kernels need Triton: pip install triton==3.9.0")
import triton.language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

from tests.plugins.triton.inline_ptx import evaluate, is_packed_16_bit  # noqa: E402

Array = np.ndarray
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
TYPES: dict[str, Any] = {"fp16": np.dtype(np.float16), "bf16": BFLOAT16}
GUARD = 1024  # bytes on either side of a buffer
CANARY = 0xFF  # NaN in every float type, -1 in every signed one
ALIGNMENT = 64


class Buffer:
    """An array in memory of its own, as the pointer argument of a kernel.

    Attributes:
        array: the contents, of the given NumPy type.
        written: whether a kernel may change it.
    """

    def __init__(self, array: Array, *, written: bool = False) -> None:
        self.written = written
        size = array.nbytes
        self._memory = np.full(size + 2 * GUARD + ALIGNMENT, CANARY, np.uint8)
        self._start = GUARD + -(self._memory.ctypes.data + GUARD) % ALIGNMENT
        inner = self._memory[self._start : self._start + size]
        self.array = inner.view(array.dtype).reshape(array.shape)
        self.array[...] = array
        plain = inner if size else np.zeros(16, np.uint8)
        plain = plain.view(np.uint16 if array.dtype == BFLOAT16 else array.dtype)
        tensor = torch.from_numpy(plain)
        self.tensor = tensor.view(torch.bfloat16) if array.dtype == BFLOAT16 else tensor

    def snapshot(self) -> bytes:
        """What must be the same after a launch: the canaries, or everything where not written."""
        if not self.written:
            return self._memory.tobytes()
        end = self._start + self.array.nbytes
        return self._memory[: self._start].tobytes() + self._memory[end:].tobytes()


def scratch(shape: Sequence[int], dtype: Any) -> Buffer:
    """A buffer that a kernel writes, poisoned: NaN, -1, or 255."""
    empty = np.empty(tuple(shape), dtype)
    buffer = Buffer(empty, written=True)
    buffer.array.view(np.uint8)[...] = CANARY
    return buffer


def launch(kernel: Any, grid: Sequence[int], arguments: Sequence[Any], **constexprs: Any) -> None:
    """Runs every program of a grid, one after the other.

    Args:
        kernel: a ``triton.jit`` function.
        grid: up to three extents; nothing runs where one is 0.
        arguments: the runtime arguments in order: a ``Buffer`` per pointer, int, float. Floats are
            rounded to fp32, as the ABI passes them.
        constexprs: the rest, by name.

    Raises:
        AssertionError: the kernel wrote outside of a buffer, or into one that is not ``written``.
    """
    if not isinstance(kernel, interpreter.InterpretedFunction):
        raise TypeError(f"{kernel} was imported before TRITON_INTERPRET was set")
    names = list(kernel.arg_names)
    runtime = [name for name in names if name not in constexprs]
    if len(runtime) != len(arguments) or set(constexprs) - set(names):
        raise TypeError(f"{kernel.__name__} takes {names}; {len(arguments)} and {[*constexprs]}")
    buffers = {n: a for n, a in zip(runtime, arguments, strict=True) if isinstance(a, Buffer)}
    before = {name: buffer.snapshot() for name, buffer in buffers.items()}
    passed = [_argument(argument) for argument in arguments]
    if all(extent > 0 for extent in grid):
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a row of NaN has no maximum
            kernel[tuple(grid)](*passed, **constexprs)
    for name, buffer in buffers.items():
        assert buffer.snapshot() == before[name], f"{kernel.__name__} wrote beyond {name}"


def _argument(argument: Any) -> Any:
    if isinstance(argument, Buffer):
        return argument.tensor
    if isinstance(argument, float | np.floating):
        return float(np.float32(argument))
    return int(argument)


def _is_bf16(handle: Any) -> bool:
    return handle.dtype.scalar == tl.bfloat16


def _float32(handle: Any) -> Array:
    return handle.data.view(BFLOAT16).astype(np.float32) if _is_bf16(handle) else handle.data


def _correct_bf16(builder: type) -> None:
    dot, binary, cast = builder.create_dot, builder.binary_op, builder.cast_impl
    unary, ternary, fp_to_fp = builder.unary_op, builder.ternary_op, builder.create_fp_to_fp

    def create_dot(self: Any, a: Any, b: Any, d: Any, precision: Any, inexact: Any) -> Any:
        if _is_bf16(a) or _is_bf16(b):
            product = np.matmul(_float32(a), _float32(b), dtype=np.float32) + d.data
            return interpreter.TensorHandle(product, d.dtype.scalar)
        return dot(self, a, b, d, precision, inexact)

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        if tl.bfloat16 not in (source.dtype.scalar, target.scalar) or source.dtype == target:
            return cast(self, source, target)
        if target.scalar == tl.bfloat16:
            data = np.asarray(source.data, np.float32).astype(BFLOAT16).view(np.uint16)
        else:
            data = _float32(source).astype(interpreter._get_np_dtype(target))
        return interpreter.TensorHandle(data, target.scalar)

    def create_fp_to_fp(self: Any, source: Any, target: Any, rounding: Any) -> Any:
        if tl.bfloat16 in (source.dtype.scalar, target.scalar):
            return cast_impl(self, source, target)
        return fp_to_fp(self, source, target, rounding)

    def refuse(operation: Any, operands: int) -> Any:
        def checked(self: Any, *arguments: Any) -> Any:
            if any(_is_bf16(x) for x in arguments[:operands]):
                raise TypeError("bf16 arithmetic: convert to fp32 first")
            return operation(self, *arguments)

        return checked

    def ternary_op(self: Any, condition: Any, a: Any, b: Any, operation: Any) -> Any:
        if operation is not np.where and (_is_bf16(a) or _is_bf16(b)):
            raise TypeError("bf16 arithmetic: convert to fp32 first")
        return ternary(self, condition, a, b, operation)

    corrections = {"create_dot": create_dot, "cast_impl": cast_impl, "ternary_op": ternary_op}
    corrections |= {"create_fp_to_fp": create_fp_to_fp, "binary_op": refuse(binary, 2)}
    corrections |= {"unary_op": refuse(unary, 1)}
    for name, corrected in corrections.items():
        setattr(builder, name, corrected)


class _InlineResult:
    """What ``tl.inline_asm_elementwise`` asks for its result."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def get_result(self, index: int) -> Any:
        assert index == 0
        return self.handle


def _inline_asm(
    self: Any, text: str, constraints: str, sources: Any, types: Any, pure: bool, pack: int
) -> _InlineResult:
    (source,), (target,) = sources, types
    if not is_packed_16_bit(constraints, pack) or source.data.itemsize != 2:
        raise NotImplementedError(f"inline PTX of another form: {constraints}, pack {pack}")
    pairs = np.ascontiguousarray(source.data).reshape(-1).view(np.uint32)
    data = evaluate(text, pairs).view(interpreter._get_np_dtype(target.scalar))
    handle = interpreter.TensorHandle(data.reshape(source.data.shape), target.scalar)
    return _InlineResult(handle)


_numpy_types: dict[str, Any] = {}
_slow_numpy_type = interpreter._get_np_dtype


def _numpy_type(of: Any) -> Any:
    """``interpreter._get_np_dtype``, remembered."""
    name = of.element_ty.name if isinstance(of, tl.block_type) else of.name
    if name not in _numpy_types:
        _numpy_types[name] = _slow_numpy_type(of)
    return _numpy_types[name]


def _call_device_function(self: Any, *arguments: Any, **named: Any) -> Any:
    """A call inside a kernel: ``triton.language`` is patched already, for the launch."""
    try:
        return self.rewrite()(*arguments, **named)
    except Exception as error:
        raise interpreter.InterpreterError(repr(error)) from error


if not getattr(interpreter.InterpreterBuilder, "corrected", False):
    _correct_bf16(interpreter.InterpreterBuilder)
    # For Triton's own functions (zeros, sum, ...), which see the module by another name.
    interpreter._patch_lang(tl.standard.zeros.fn)
    options = interpreter.InterpreterOptions(sanitize_overflow=False)
    interpreter.interpreter_builder.options = options
    interpreter._get_np_dtype = _numpy_type
    interpreter.InterpreterBuilder.create_inline_asm = _inline_asm
    interpreter.InterpretedFunction.__call__ = _call_device_function
    interpreter.InterpreterBuilder.corrected = True
