"""Launches the attention kernels of one node call, in the place of the C++ plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicache.exporter.schemas import SEGMENT_ALIGNMENT, retained_extra
from minicache.plugins.reference.eviction import slot_map
from minicache.plugins.reference.retention import active_slots
from minicache.plugins.reference.state import Span, head_order
from tests.plugins.triton.interpreter import BFLOAT16, Array, Buffer, launch, scratch

from minicache.plugins.triton.attend_codes import attend_codes  # isort: skip
from minicache.plugins.triton.attend_exact import attend_exact  # isort: skip
from minicache.plugins.triton.finish import finish  # isort: skip
from minicache.plugins.triton.project import project  # isort: skip

WIDTHS = (16, 8, 4, 2)
NO_SEGMENTS = 2**30  # the length of a segment that holds every position


@dataclass(frozen=True)
class Blocks:
    """How a call is cut: small sizes, so that small tests have several of everything."""

    rows: int = 16
    codes: int = 16
    exact: int = 16
    components: int = 16
    splits: int = 3
    exact_splits: int = 2
    chunk: int = 0  # new tokens of a launch; 0: all


class Format:
    """Where components lie in a code.

    Attributes, per width: ``counts`` of components, ``sizes`` in bytes, ``starts`` of the segments
    (with their padding), ``pads`` of their words of two bytes.
    """

    def __init__(self, bits: tuple[int, ...]) -> None:
        counts = dict(zip(bits[0::2], bits[1::2], strict=True))
        self.counts = [counts.get(width, 0) for width in WIDTHS]
        self.sizes = [w * n // 8 for w, n in zip(WIDTHS, self.counts, strict=True)]
        padded = [size + -size % SEGMENT_ALIGNMENT for size in self.sizes]
        self.starts = [sum(padded[:i]) for i in range(4)]
        self.bytes = sum(padded)
        self.components = sum(self.counts)
        self.stride = -(-self.components // 16) * 16
        self.pads = [max(16, 1 << (n // 2 - 1).bit_length()) if n else 0 for n in self.sizes]
        self.numbers = [*self.sizes, *self.starts[1:], self.bytes]  # as the kernels take them


class AttendCall:
    """One node call: ``run`` returns its attention ``[B, S, H*D]``.

    Args:
        attributes: of the node, complete.
        inputs: as of ``run_node``; queries, keys and values in fp16 or bf16.
        blocks: how to cut it.
    """

    def __init__(
        self, attributes: Mapping[str, Any], inputs: Mapping[str, Array], blocks: Blocks
    ) -> None:
        self.a, self.inputs, self.blocks = attributes, inputs, blocks
        self.coded = attributes["mode"] != "exact"
        self.batch, self.new_tokens, _ = inputs["query"].shape
        self.heads, self.kv_heads = attributes["num_heads"], attributes["kv_num_heads"]
        self.state = {n[5:]: x for n, x in inputs.items() if n.startswith("past_")}
        names = ["past_lengths", "total_lengths", "past_evicted"]
        self.lengths = [Buffer(inputs[name]) if name in inputs else 0 for name in names]
        self.splits = blocks.splits if self.coded else 0
        self.parts = self.splits + blocks.exact_splits
        policy = attributes["retention"] if "retained_position" in self.state else "none"
        self.retains = {"none": 0, "budget": 2}.get(policy, 1)
        self.evicts = int("evicted" in self.state)
        self.active, self.skipped = self._active_tokens()
        self.bias = inputs.get("attention_bias")
        self.output = scratch(inputs["query"].shape, inputs["query"].dtype)

    def run(self) -> Array:
        chunk = self.blocks.chunk or self.new_tokens
        buffers: dict[str, Any] = defaultdict(int)  # a null pointer for what is not there
        buffers |= {n: Buffer(x.view(np.uint8) if x.dtype == np.int8 else
                   x.view(np.int16) if n.endswith("magnitude") else x)
                   for n, x in (self.inputs | self.state).items()}  # fmt: skip
        for first in range(0, self.new_tokens, chunk):
            Chunk(self, first, min(chunk, self.new_tokens - first), buffers).run()
        return self.output.array

    def _active_tokens(self) -> tuple[Array, Array]:
        """What the kernel ``active`` makes: flags ``[B, P]``, and the list of tokens to skip."""
        a, state = self.a, self.state
        if self.retains != 2:
            return np.zeros((self.batch, 0), np.int32), np.zeros((self.batch, 0), np.int32)
        slack = retained_extra(a)
        held = state["retained_position"]
        flags, skipped = np.zeros_like(held), np.full((self.batch, 1 + slack), -1, np.int32)
        for row in range(self.batch):
            past, total = (int(self.inputs[f"{n}_lengths"][row]) for n in ("past", "total"))
            span = Span(past, total, a["sinks"], a["window"])
            at = active_slots(
                held[row], state["retained_similarity"][row], (span.sinks, span.c0), "budget",
                max(0, held.shape[1] - slack),
            )  # fmt: skip
            flags[row, at] = 1
            slots = slot_map(a, state, row).slots(held[row, at].astype(np.int64))
            unmarked = slots[~np.signbit(state["key_magnitude"][row, 0, slots, 0])]
            skipped[row, : 1 + unmarked.size] = [unmarked.size, *unmarked]
        return flags, skipped


class Chunk:
    """The launches for the new tokens [first, first + count) of a call."""

    def __init__(
        self, call: AttendCall, first: int, count: int, buffers: Mapping[str, Any]
    ) -> None:
        self.call, self.a, self.blocks, self.buffers = call, call.a, call.blocks, buffers
        self.tokens = [call.new_tokens, first, count, call.heads, call.kv_heads]
        self.rows = count * call.heads // call.kv_heads
        self.lead = call.batch, count, call.heads
        self.maximum = scratch((*self.lead, call.parts), np.float32)
        self.sum = scratch((*self.lead, call.parts), np.float32)
        shape = *self.lead, self.blocks.exact_splits, self.a["head_size"]
        self.exact = scratch(shape, np.float32)
        self.coded: Buffer | int = 0
        bias, softcap = call.bias, self.a["softcap"]
        self.flags = {"HAS_BIAS": int(bias is not None), "HAS_SOFTCAP": int(softcap > 0)}
        self.bias_extents = [0, 0]  # elements between batch rows, and of the last dimension
        if bias is not None:
            self.bias_extents = [bias[0].size if len(bias) > 1 else 0, bias.shape[3]]

    def run(self) -> None:
        if self.call.coded:
            self.attend_codes(*self.project())
        self.attend_exact()
        self.finish()

    @property
    def segment_length(self) -> int:
        framed = self.a["segment_length"] > 0 and self.a["has_decoder"]
        return self.a["segment_length"] if framed else NO_SEGMENTS

    def project(self) -> tuple[Buffer, Buffer]:
        a, call, code = self.a, self.call, Format(self.a["key_bits"])
        capacity = call.state["key_code"].shape[2]
        segments = -(-capacity // self.segment_length)
        segments = call.state["evicted"].shape[1] - 1 if call.evicts else segments
        projected = scratch((*self.lead, segments, code.stride), np.float16)
        offset = scratch((*self.lead, segments), np.float32)
        rates = call.inputs.get("rope_frequencies", np.zeros(0))
        launch(
            project,
            (-(-self.rows // self.blocks.rows), segments, call.batch * call.kv_heads),
            [self.buffers["query"], self.buffers["key_decoder"], self.buffers["rope_frequencies"],
             *call.lengths, projected, offset, *self.tokens, segments, rates.size, a["sinks"],
             a["window"], self.segment_length, *code.counts, code.stride, a["scale"]],
            D=a["head_size"], HAS_DECODER=a["has_decoder"], INTERLEAVED=a["rotary_interleaved"],
            EVICTS=call.evicts, BLOCK_M=self.blocks.rows, BLOCK_R=self.blocks.components,
        )  # fmt: skip
        return projected, offset

    def jobs(self) -> tuple[int, int, Array]:
        """Kv heads per job, jobs, and the table of ``attend_codes``."""
        a, heads = self.a, self.call.kv_heads
        read = {}
        for kind in ("key", "value"):
            read[kind] = np.empty(heads, np.int64)
            own = head_order(a, kind)[a["group_slot"]]
            read[kind][own] = np.arange(heads) * a["code_heads"] // heads
        groups: dict[tuple[int, int], list[int]] = {}
        for head, pair in enumerate(zip(read["key"].tolist(), read["value"].tolist(), strict=True)):
            groups.setdefault(pair, []).append(head)
        if len({len(group) for group in groups.values()}) > 1:
            pairs = [(int(read["key"][h]), int(read["value"][h]), [h]) for h in range(heads)]
        else:
            pairs = [(*pair, group) for pair, group in groups.items()]
        table = [h for *_, group in pairs for h in group]
        table += [k for k, _, _ in pairs] + [v for _, v, _ in pairs]
        return heads // len(pairs), len(pairs), np.array(table, np.int32)

    def attend_codes(self, projected: Buffer, offset: Buffer) -> None:
        a, call = self.a, self.call
        key, value = Format(a["key_bits"]), Format(a["value_bits"])
        capacity = call.state["key_code"].shape[2]
        magnitudes = call.state["key_magnitude"].shape[3]
        each, jobs, table = self.jobs()
        self.coded = scratch((*self.lead, call.splits, value.stride), np.float32)
        segments = offset.array.shape[3]
        pads = {f"{k}{w}": p for k, code in (("K", key), ("V", value))
                for w, p in zip(WIDTHS, code.pads, strict=True)}  # fmt: skip
        launch(
            attend_codes,
            (-(-self.rows * each // self.blocks.rows), call.splits, call.batch * jobs),
            [projected, offset, *(self.buffers[f"{kind}_{part}"] for part in ("code", "magnitude")
             for kind in ("key", "value")), *call.lengths, Buffer(table),
             self.buffers["attention_bias"], Buffer(call.skipped) if call.retains == 2 else 0,
             self.maximum, self.sum, self.coded, *self.tokens, each, jobs, a["code_heads"],
             capacity, call.splits, call.parts, segments, self.segment_length, a["sinks"],
             a["window"], a["local_window_size"], magnitudes,
             a["group_slot"] if magnitudes > 1 else 0, call.skipped.shape[1], *self.bias_extents,
             *key.numbers, *value.numbers, key.stride, value.stride, a["softcap"]],
            **pads, **self.flags, MARKS=call.retains, EVICTS=call.evicts,
            BLOCK_M=self.blocks.rows, BLOCK_N=self.blocks.codes,
        )  # fmt: skip

    def attend_exact(self) -> None:
        a, call = self.a, self.call
        slots = call.state["exact_key"].shape[3]
        mode = 2 if call.coded else int(a["local_window_size"] > 0)
        retained = call.state["retained_position"].shape[1] if call.retains else 0
        launch(
            attend_exact,
            (-(-self.rows // self.blocks.rows), self.blocks.exact_splits,
             call.batch * call.kv_heads),
            [*(self.buffers[n] for n in ("query", "key", "value", "exact_key", "exact_value",
             "retained_key", "retained_value", "retained_position")),
             Buffer(call.active) if call.retains == 2 else 0, *call.lengths,
             self.buffers["attention_bias"], self.maximum, self.sum, self.exact, *self.tokens,
             a["group_size"], a["group_slot"], slots, retained, a["sinks"], a["window"],
             a["ring_slots"], a["local_window_size"], call.splits, self.blocks.exact_splits,
             call.parts, *self.bias_extents, a["scale"], a["softcap"]],
            **self.flags, D=a["head_size"], MODE=mode, RETAINS=call.retains,
            EVICTS=call.evicts * (mode == 0), BLOCK_M=self.blocks.rows, BLOCK_N=self.blocks.exact,
        )  # fmt: skip

    def finish(self) -> None:
        a, call, value = self.a, self.call, Format(self.a["value_bits"])
        launch(
            finish,
            (-(-self.rows // self.blocks.rows), call.batch * call.kv_heads),
            [self.maximum, self.sum, self.coded, self.exact, self.buffers["value_decoder"],
             self.buffers["head_sink"], *call.lengths[:2], call.output, *self.tokens, call.splits,
             self.blocks.exact_splits, call.parts, value.components, value.stride],
            D=a["head_size"], CODED=int(call.coded), HAS_DECODER=a["has_decoder"],
            HAS_SINK=a["has_sink"], BLOCK_M=self.blocks.rows, BLOCK_R=self.blocks.components,
        )  # fmt: skip


def model_type(dtype: Any) -> str:
    """The name of a model's type in ``tests.tolerances``."""
    return "bfloat16" if np.dtype(dtype) == BFLOAT16 else np.dtype(dtype).name
