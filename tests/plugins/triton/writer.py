"""Launches the kernels of a writer's call in order, on the state of a group."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.helpers import Call
from tests.plugins.triton.interpreter import Array, Buffer, launch, scratch, torch

# isort: split
from minicache.exporter import schemas
from minicache.plugins.triton.active import active
from minicache.plugins.triton.align import align
from minicache.plugins.triton.encode import encode
from minicache.plugins.triton.gather import gather
from minicache.plugins.triton.mark import mark
from minicache.plugins.triton.project_joint import project_joint
from minicache.plugins.triton.quantise_joint import quantise_joint
from minicache.plugins.triton.retain import retain
from minicache.plugins.triton.retain_store import retain_store
from minicache.plugins.triton.signatures import SIGNATURES
from minicache.plugins.triton.store import store

State = dict[str, Array]
KERNELS = {
    kernel.__name__: kernel
    for kernel in (active, align, encode, gather, mark, project_joint, quantise_joint, retain,
                   retain_store, store)
}  # fmt: skip
LAYERS = 8  # that one launch takes
ELEMENTS = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64, "u8": np.uint8}
ELEMENTS |= {"i16": np.int16, "i32": np.int32}
# Small, so that small tests have several blocks of everything.
BLOCK, BLOCK_T, BLOCK_R, BLOCK_K = 16, 16, 16, 64
NO_SEGMENTS = 2**30  # the length of a segment that holds every position
DOT_TOKENS = 16  # from so many new tokens on products use tensor cores


def reinterpret(buffer: Buffer, dtype: Any) -> Buffer:
    """The same memory as a pointer to another type of the same size."""
    same = copy.copy(buffer)
    names = {np.dtype(np.uint8): torch.uint8, np.dtype(np.int16): torch.int16}
    same.tensor = buffer.tensor.view(names[np.dtype(dtype)])
    same.array = buffer.array.view(dtype)
    return same


def power_of_two(n: int, least: int = 16) -> int:
    """The next power of two, at least ``least``; 0 for nothing."""
    return max(least, 1 << (n - 1).bit_length()) if n else 0


def ceil(a: int, b: int) -> int:
    """Quotient, rounded up."""
    return -(-a // b)


class Writer:
    """A group's state in buffers, and the launches that update it.

    Attributes:
        state: by name, as the reference has it.
        scratch: of the last call, by argument name.
    """

    def __init__(
        self, attributes: dict[str, Any], state: State, tables: Sequence[State] = ()
    ) -> None:
        self.attributes = attributes
        self.buffers = {name: Buffer(array, written=True) for name, array in state.items()}
        self.tables = {
            name: Buffer(array) for name, array in (tables[-1] if tables else {}).items()
        }
        self.scratch: dict[str, Buffer] = {}

    @property
    def state(self) -> State:
        """A view of the state's memory."""
        return {name: buffer.array for name, buffer in self.buffers.items()}

    def step(self, call: Call) -> None:
        """Runs one call; its attention has been done."""
        a, coded = self.attributes, self.attributes["mode"] != "exact"
        self._prepare(call)
        if coded:
            framed = int("rope_frequencies" in self.tables)
            self._layers("gather", D=a["head_size"], INTERLEAVED=a["rotary_interleaved"],
                         FRAMED=framed, BLOCK_T=BLOCK_T)  # fmt: skip
            for kind in ("key", "value"):
                (self._joint if a["mode"] == "subspace" else self._merge)(kind)
            if "retained_position" in self.buffers:
                self._retain()
        sliding = int(a["local_window_size"] > 0)
        mode = {"MODE": 2, "EVICTS": 0} if coded else {"MODE": sliding}
        self._layers("store", D=a["head_size"], BLOCK_T=BLOCK_T, **mode)

    def active(self, past: Array, total: Array) -> tuple[Array, Array]:
        """What ``budget`` reads: flags ``[B, P]`` and the skip list ``[B, 1 + X]``."""
        self._values = self._numbers(len(past), 1)
        batch, slots = self.buffers["retained_position"].array.shape
        self._values |= {"past_ptr": Buffer(past), "total_ptr": Buffer(total)}
        self._values |= self._retained()
        flags = scratch((batch, slots), np.int32)
        skipped = scratch((batch, 1 + self._values["slack"]), np.int32)
        self._run("active", (batch,), active_ptr=flags, skipped_ptr=skipped, BLOCK=BLOCK)
        return flags.array, skipped.array

    def _numbers(self, batch: int, new_tokens: int) -> dict[str, Any]:
        a = self.attributes
        names = ("group_size", "kv_num_heads", "code_heads", "sinks", "window", "ring_slots")
        numbers = {name.replace("_num", ""): a[name] for name in names}
        slack = a["ring_slots"] - a["window"]
        numbers |= {"batch": batch, "new_tokens": new_tokens, "slack": slack}
        numbers |= {"magnitude_count": schemas.magnitude_count(a), "slerp_t": a["slerp_t"]}
        numbers |= {"threshold": a["retention_threshold"], "gamma": a["retention_gamma"]}
        numbers |= {"slots": self.buffers["exact_key"].array.shape[3]}
        table = self.buffers.get("evicted", Buffer(np.zeros((batch, 2), np.int32)))
        numbers |= {"evicted_ptr": table, "segments": table.array.shape[1] - 1}
        numbers |= {"segment_length": schemas.segment_length(a) or NO_SEGMENTS}
        numbers |= {"EVICTS": int("evicted" in self.buffers)}
        coded = "key_code" in self.buffers
        capacity = self.buffers["key_code"].array.shape[2] if coded else numbers["slots"]
        numbers |= {"capacity": capacity}
        return numbers

    def _prepare(self, call: Call) -> None:
        """Arguments and scratch of a call, by name."""
        a = self.attributes
        batch, tokens, _ = call.keys[0].shape
        self.shape = batch, tokens, a["group_size"], a["kv_num_heads"], a["head_size"]
        self._values = self._numbers(batch, tokens)
        self.new = [(Buffer(k), Buffer(v)) for k, v in zip(call.keys, call.values, strict=True)]
        self._values |= {"past_ptr": Buffer(call.past), "total_ptr": Buffer(call.total)}
        for name in ("exact_key", "exact_value"):
            self._values[f"{name}_ptr"] = self.buffers[name]
        identity = list(range(a["kv_num_heads"])) * a["group_size"]
        orders = [a[f"{kind}_head_permutation"] or identity for kind in ("key", "value")]
        self._values["permutation_ptr"] = Buffer(np.array(orders, np.int32))
        frequencies = self.tables.get("rope_frequencies", Buffer(np.zeros(1, np.float32)))
        self._values |= {"frequency_ptr": frequencies, "pairs": frequencies.array.size}
        both = scratch((2, *self.shape), np.float32)
        self._values["gathered_ptr"] = both
        self.scratch = {"gathered": both}
        self.cosines = scratch((2, 2, batch, tokens, a["kv_num_heads"]), np.float64)

    def _run(self, kernel: str, grid: tuple[int, ...], **given: Any) -> None:
        """Launches a kernel: arguments come from ``given`` or the call, in the order of the ABI."""
        signature = SIGNATURES[kernel]
        values = self._values | given
        arguments = []
        for argument in signature.arguments:
            value = values[argument.name]
            if argument.element in ELEMENTS:
                assert value.array.dtype == ELEMENTS[argument.element], argument.name
            arguments.append(value)
        launch(KERNELS[kernel], grid, arguments, **{n: values[n] for n in signature.constants})

    def _layers(self, kernel: str, **given: Any) -> None:
        """One launch per eight layers; pointers without a layer repeat the last one."""
        batch, tokens, group, heads, _ = self.shape
        for first in range(0, group, LAYERS):
            count = min(LAYERS, group - first)
            pointers = {}
            for i in range(LAYERS):
                key, value = self.new[first + min(i, count - 1)]
                pointers |= {f"key_{i}_ptr": key, f"value_{i}_ptr": value}
            grid = ceil(tokens, given["BLOCK_T"]), count * heads, 2 * batch
            self._run(kernel, grid, first_layer=first, **pointers, **given)

    def _half(self, kind: str) -> Buffer:
        """The gathered vectors of keys or of values, as a pointer into the middle would be."""
        return Buffer(self.scratch["gathered"].array[int(kind == "value")])

    def _codes(self, kind: str) -> dict[str, Any]:
        code = self.buffers[f"{kind}_code"]
        return {"code_ptr": reinterpret(code, np.uint8), "bytes": code.array.shape[3],
                "magnitude_ptr": self.buffers[f"{kind}_magnitude"]}  # fmt: skip

    def _product(self, kernel: str, rows: int, planes: int, **given: Any) -> None:
        tokens, dot = self.shape[1], int(self.shape[1] >= DOT_TOKENS)
        block = BLOCK_T if dot else 1
        grid = ceil(tokens, block), ceil(rows, BLOCK_R), planes
        blocks = {"BLOCK_T": block, "BLOCK_R": BLOCK_R, "BLOCK_K": BLOCK_K}
        self._run(kernel, grid, D=self.shape[4], DOT=dot, **blocks, **given)

    def _joint(self, kind: str) -> None:
        batch, tokens, _, _, _ = self.shape
        bits, code_heads = self.attributes[f"{kind}_bits"], self.attributes["code_heads"]
        counts = dict(zip(bits[::2], bits[1::2], strict=True))
        c8, c4, c2 = (counts.get(width, 0) for width in (8, 4, 2))
        components = c8 + c4 + c2
        joint = scratch((batch, tokens, code_heads, ceil(components, 16) * 16), np.float32)
        shared = {"joint_ptr": joint, "stride": joint.array.shape[3]}
        self._product(
            "project_joint", components, batch * code_heads, gathered_ptr=self._half(kind),
            encoder_ptr=self.tables[f"{kind}_encoder"], components=components, **shared,
        )  # fmt: skip
        self._run(
            "quantise_joint", (tokens, code_heads, batch), step_ptr=self.tables[f"{kind}_step"],
            c8=c8, c4=c4, c2=c2, b4=c8, b2=c8 + c4 // 2, P8=power_of_two(c8),
            P4=power_of_two(c4 // 2), P2=power_of_two(c2 // 4), **shared, **self._codes(kind),
        )  # fmt: skip

    def _merge(self, kind: str) -> None:
        batch, tokens, group, heads, size = self.shape
        gathered = aligned = self._half(kind)
        if f"{kind}_encoder" in self.tables:
            aligned = scratch(self.shape, np.float32)
            self._product(
                "align", size, batch * group * heads, gathered_ptr=gathered, aligned_ptr=aligned,
                encoder_ptr=self.tables[f"{kind}_encoder"],
            )  # fmt: skip
        cosine = scratch(self.cosines.array.shape[1:], np.float64)
        self._run(
            "encode", (ceil(tokens, BLOCK_T), heads, batch), cosine_ptr=cosine, D=size,
            gathered_ptr=gathered, aligned_ptr=aligned, BITS=self.attributes[f"{kind}_bits"][0],
            MAGNITUDE=schemas.MAGNITUDES.index(self.attributes["magnitude"]),
            ALIGNED=int(f"{kind}_encoder" in self.tables), BLOCK_T=BLOCK_T, **self._codes(kind),
        )  # fmt: skip
        self.cosines.array[int(kind == "value")] = cosine.array

    def _retained(self) -> dict[str, Any]:
        named = {"position_ptr": "retained_position", "similarity_ptr": "retained_similarity",
                 "range_ptr": "similarity_range", "retained_key_ptr": "retained_key",
                 "retained_value_ptr": "retained_value"}  # fmt: skip
        values: dict[str, Any] = {name: self.buffers[state] for name, state in named.items()}
        for kind in ("key", "value"):
            magnitude = reinterpret(self.buffers[f"{kind}_magnitude"], np.int16)
            values[f"{kind}_magnitude_ptr"] = magnitude
        return values | {"retained": self.buffers["retained_position"].array.shape[1]}

    def _retain(self) -> None:
        batch, tokens, _, heads, size = self.shape
        self._values |= self._retained()
        slots = self._values["retained"]
        made = {"slot": (batch, tokens), "free": (batch, slots), "change": (batch, slots + tokens)}
        self.scratch |= {name: scratch(shape, np.int32) for name, shape in made.items()}
        self.scratch["token_similarity"] = scratch((batch, tokens), np.float32)
        self._values |= {f"{name}_ptr": self.scratch[name] for name in (*made, "token_similarity")}
        self._values["cosine_ptr"] = self.cosines
        policy = schemas.RETENTIONS.index(self.attributes["retention"]) - 1  # without "none"
        any_head = int(self.attributes["retention_scope"] == "any-head")
        self._run("retain", (batch,), POLICY=policy, ANY_HEAD=any_head, BLOCK=BLOCK)
        if slots:
            self._layers("retain_store", D=size, BLOCK_T=BLOCK_T)
        self._run("mark", (ceil(slots + tokens, BLOCK_T), heads, 2 * batch), BLOCK_T=BLOCK_T)
