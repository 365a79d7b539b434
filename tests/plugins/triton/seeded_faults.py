"""Faults that tests of the kernels have to find, each made by replacing a text in one kernel."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

KERNELS = Path(__file__).parents[3] / "plugins" / "triton"


@dataclass(frozen=True)
class Fault:
    """One text of a kernel's file, and what stands there instead.

    Attributes:
        name: for people.
        case: the test case that has to find it, of ``fault_cases``.
        file: name of the kernel's file, without ``.py``.
        text: occurs exactly once in it.
        instead: the wrong text.
    """

    name: str
    case: str
    file: str
    text: str
    instead: str


ATTEND = (
    Fault(
        "sums of exact values are not rescaled", "exact", "attend_exact",
        "value, out * rescale[:, None])", "value, out)",
    ),
    Fault(
        "sums of coded values are not rescaled", "subspace", "code_dots",
        "tile, sums[len(out)] * rescale[:, None])", "tile, sums[len(out)])",
    ),
    Fault(
        "the sum of weights is not rescaled", "exact", "softmax",
        "total * rescale + tl.sum(weight, 1)", "total + tl.sum(weight, 1)",
    ),
    Fault(
        "scores keep the middle of the grid", "subspace", "attend_codes",
        "score -= offset[:, None]", "score -= 0.0 * offset[:, None]",
    ),
    Fault(
        "values keep the middle of the grid", "subspace", "code_dots",
        "sums, FIRST4, n4, weighed * MIDDLE_4", "sums, FIRST4, n4, weighed * 0.0",
    ),
    Fault(
        "every segment is met by the first one's query", "subspace", "attend_codes",
        "a_row = out_row * segments + segment", "a_row = out_row * segments",
    ),
    Fault(
        "queries are turned the wrong way", "subspace", "rotation",
        "tl.where(is_first, sine, -sine)", "tl.where(is_first, -sine, sine)",
    ),
    Fault(
        "values come from the code head of keys", "subspace", "attend_codes",
        "tl.load(job_ptr + kv_heads + jobs + job)", "tl.load(job_ptr + kv_heads + job)",
    ),
    Fault(
        "retained tokens are read from codes as well", "retained", "attend_codes",
        "read = read & (key_bits >= 0)", "read = read & (key_bits >= -32768)",
    ),
    Fault(
        "magnitudes are the first layer's", "retained", "attend_codes",
        "key_code * magnitude_count + magnitude_slot", "key_code * magnitude_count",
    ),
    Fault(
        "retained tokens are not attended to", "retained", "attend_exact",
        "inside & (position >= sinks) & (position < code_stop)", "inside & (position < sinks)",
    ),
    Fault(
        "a token sees the next one", "exact", "attend_exact",
        "visible = (position[None, :] <= limit[:, None])",
        "visible = (position[None, :] <= limit[:, None] + 1)",
    ),
    Fault(
        "the sliding window is a token too long", "sliding", "attend_exact",
        "tl.where(local_window > 0, limit - local_window, -1)",
        "tl.where(local_window > 0, limit - local_window - 1, -1)",
    ),
    Fault(
        "exact tokens are read from another slot", "subspace", "attend_exact",
        "sinks + (position - sinks) % ring_slots)", "sinks + position % ring_slots)",
    ),
    Fault(
        "parts of exact tokens are merged unweighed", "exact", "finish",
        "mask=known, other=0.0) * weight[:, None]\n    if CODED",
        "mask=known, other=0.0)\n    if CODED",
    ),
)  # fmt: skip

ENCODE = (
    Fault(
        "planes of directions are swapped", "codes", "encode",
        "level << (plane * BITS)[None, :, None]",
        "level << ((planes - 1 - plane) * BITS)[None, :, None]",
    ),
    Fault(
        "planes of components are swapped", "joint", "quantise_joint",
        "level << (plane * BITS)", "level << ((planes - 1 - plane) * BITS)",
    ),
    Fault(
        "magnitudes overflow", "codes", "encode",
        "tl.where(magnitude > LIMIT, LIMIT, magnitude)", "magnitude",
    ),
    Fault(
        "levels overflow", "joint", "quantise_joint",
        "tl.maximum(tl.where(known, level, half), 0.0), last)",
        "tl.maximum(tl.where(known, level, half), 0.0), last + 1)",
    ),
    Fault(
        "heads of values follow the keys' permutation", "codes", "gather",
        "(kind * group_size + layer) * kv_heads + slot)", "layer * kv_heads + slot)",
    ),
    Fault(
        "directions are merged with the next layer's weight", "codes", "encode",
        "tl.cast(slerp_t, tl.float64) / (g + 1)", "tl.cast(slerp_t, tl.float64) / (g + 2)",
    ),
    Fault(
        "keys are turned into the frame of the next segment", "joint", "gather",
        "offset = position // segment_length * segment_length",
        "offset = (position // segment_length + 1) * segment_length",
    ),
    Fault(
        "the oldest token of the ring is not stored", "codes", "store",
        "(position >= total - ring_slots)", "(position > total - ring_slots)",
    ),
    Fault(
        "exact tokens lie in another slot", "codes", "encoded",
        "sinks + (position - sinks) % ring_slots)", "sinks + position % ring_slots)",
    ),
    Fault(
        "marks are never taken off", "eviction", "mark",
        "(bits & 0x7FFF) | ((change & 1) << 15)", "bits | ((change & 1) << 15)",
    ),
    Fault(
        "the range is entered one place too early", "retention", "retain",
        "(first + index + 1 - sinks) % entries * 2", "(first + index - sinks) % entries * 2",
    ),
    Fault(
        "tokens alike are retained", "retention", "retain",
        "stays = (index < count) & (similarity < limit)",
        "stays = (index < count) & (similarity > limit)",
    ),
)  # fmt: skip


PAIR = (
    Fault(
        "scores of deltas keep the middle of the grid", "pair", "attend_pair",
        "(delta - delta_offset[:, None])", "(delta - 0.0 * delta_offset[:, None])",
    ),
    Fault(
        "keys of the upper layer have the lower one's sign", "pair", "attend_pair",
        "(sign * key_ratio)[None, :]", "key_ratio[None, :]",
    ),
    Fault(
        "weights count for deltas as well", "pair", "attend_pair",
        "splits // 2, total * 0.0", "splits // 2, total",
    ),
    Fault(
        "ratios of values are those of keys", "pair", "attend_pair",
        "tl.load(value_ratio_ptr + value_code", "tl.load(key_ratio_ptr + value_code",
    ),
    Fault(
        "magnitudes lack the cosine", "pair", "encode_pair",
        "factor = cosine * step", "factor = step",
    ),
    Fault(
        "ratios lack the step of directions", "pair", "encode_pair",
        "own / tl.where(step > 0, step, 1.0)", "own",
    ),
)  # fmt: skip


def plant(fault: Fault | None, folder: Path) -> Path:
    """Copies the kernels to ``folder/triton``, one of them with a fault; returns ``folder``.

    Raises:
        AssertionError: the fault's text is not there exactly once: say anew what it replaces.
    """
    shutil.copytree(KERNELS, folder / "triton", ignore=shutil.ignore_patterns("__pycache__"))
    if fault is not None:
        path = folder / "triton" / f"{fault.file}.py"
        source = path.read_text()
        found = source.count(fault.text)
        assert found == 1, f"{fault.name!r}: {fault.text!r} is {found} times in {path.name}"
        path.write_text(source.replace(fault.text, fault.instead))
    return folder
