"""The arguments of every GPU kernel: what the C++ plan passes, and what tells variants apart.

One row per kernel: its run-time arguments in order, then its compile-time ones (constexprs). This
order is the ABI between the kernels (the files beside this one), the build and ``plugins/gpu``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["p", "i", "l", "f"]  # pointer, int32, int64, fp32: as the kernel pack spells them

LETTERS = ("T", "E", "U")  # types of: the model; exact and retained tokens; decoders, encoders
ELEMENT_TYPES = ("fp16", "bf16", "fp32")  # what a letter may stand for
HINT = 16  # what a hinted argument is a multiple of: wide loads need it


@dataclass(frozen=True)
class Argument:
    """One run-time argument.

    Attributes:
        name: as in the kernel.
        kind: how it is passed.
        element: of a pointer, the type behind it or a letter of ``LETTERS``; else empty.
        hinted: the hinted variants of the kernel count on a multiple of ``HINT``.
    """

    name: str
    kind: Kind
    element: str = ""
    hinted: bool = False


@dataclass(frozen=True)
class Signature:
    """The arguments of one kernel: at run time, then at compile time."""

    name: str
    arguments: tuple[Argument, ...]
    constants: tuple[str, ...]

    @property
    def letters(self) -> tuple[str, ...]:
        """The letters that its pointers use, in the order of ``LETTERS``."""
        used = {argument.element for argument in self.arguments}
        return tuple(letter for letter in LETTERS if letter in used)


def parse_signature(name: str, arguments: str, constants: str) -> Signature:
    """Reads the notation of the table below.

    Args:
        name: of the kernel.
        arguments: names apart by blanks: ``name`` is an int32, ``name%`` a hinted one, ``name:l``
            an int64, ``name:f`` a float, ``name:*fp16`` a hinted pointer, ``name*4:*fp16`` four of
            them, ``name_0`` to ``name_3``, and ``name:?i32`` a pointer that is not hinted: to small
            tables, whose rows need not begin at a multiple. Names of pointers end in ``_ptr``.
        constants: names apart by blanks.
    """
    parsed: list[Argument] = []
    for word in arguments.split():
        head, _, kind = word.partition(":")
        head, _, count = head.partition("*")
        if kind.startswith(("*", "?")):
            names = [f"{head}_{i}_ptr" for i in range(int(count))] if count else [f"{head}_ptr"]
            parsed += [Argument(each, "p", kind[1:], hinted=kind[0] == "*") for each in names]
        elif kind == "l":
            parsed.append(Argument(head, "l"))
        elif kind == "f":
            parsed.append(Argument(head, "f"))
        else:
            parsed.append(Argument(head.rstrip("%"), "i", hinted=head.endswith("%")))
    return Signature(name, tuple(parsed), tuple(constants.split()))


_LENGTHS = "past:*i32 total:*i32"
_EVICTED = f"{_LENGTHS} evicted:?i32"
_CALL = "new_tokens first count heads kv_heads"
_NEW_TOKENS = "key*8:*T value*8:*T exact_key:*E exact_value:*E"  # of up to eight layers of a group

SIGNATURES: dict[str, Signature] = {
    signature.name: signature
    for signature in (
        parse_signature(
            "project",
            f"query:*T decoder:*U frequency:*fp32 {_EVICTED} projected:*fp16 offset:*fp32 {_CALL}"
            " segments pairs sinks window segment_length c16 c8 c4 c2 stride% scale:f",
            "D HAS_DECODER INTERLEAVED EVICTS BLOCK_M BLOCK_R",
        ),
        parse_signature(
            "attend_codes",
            "projected:*fp16 offset:*fp32 key_code:*u8 value_code:*u8 key_magnitude:*i16"
            f" value_magnitude:*i16 {_EVICTED} job:*i32 bias:*T skipped:*i32 maximum:*fp32"
            f" sum:*fp32 coded:*fp32 {_CALL} heads_per_job jobs code_heads capacity% splits parts"
            " segments segment_length% sinks window local_window magnitude_count magnitude_slot"
            " skipped_stride bias_batch_stride:l bias_capacity k_n16% k_n8% k_n4% k_n2% k_b8% k_b4%"
            " k_b2% k_bytes% v_n16% v_n8% v_n4% v_n2% v_b8% v_b4% v_b2% v_bytes% k_stride%"
            " v_stride% softcap:f",
            "K16 K8 K4 K2 V16 V8 V4 V2 HAS_BIAS HAS_SOFTCAP MARKS EVICTS BLOCK_M BLOCK_N",
        ),
        parse_signature(
            "attend_pair",
            "projected:*fp16 offset:*fp32 key_code:*u8 value_code:*u8 key_magnitude:*i16"
            f" value_magnitude:*i16 key_delta:*u8 value_delta:*u8 key_ratio:*fp16 value_ratio:*fp16"
            f" {_EVICTED} job:*i32 bias:*T skipped:*i32 maximum:*fp32"
            f" sum:*fp32 coded:*fp32 {_CALL} heads_per_job jobs code_heads capacity% splits parts"
            " segments segment_length% sinks window local_window magnitude_count magnitude_slot"
            " skipped_stride bias_batch_stride:l bias_capacity k_n16% k_n8% k_n4% k_n2% k_b8% k_b4%"
            " k_b2% k_bytes% v_n16% v_n8% v_n4% v_n2% v_b8% v_b4% v_b2% v_bytes% d_n16% d_n8% d_n4%"
            " d_n2% d_b8% d_b4% d_b2% d_bytes% k_stride% v_stride% softcap:f sign:f",
            "K16 K8 K4 K2 V16 V8 V4 V2 W16 W8 W4 W2 HAS_BIAS HAS_SOFTCAP MARKS EVICTS BLOCK_M"
            " BLOCK_N",
        ),
        parse_signature(
            "attend_exact",
            "query:*T key:*T value:*T exact_key:*E exact_value:*E retained_key:*E"
            f" retained_value:*E retained_position:?i32 active:*i32 {_EVICTED} bias:*T"
            f" maximum:*fp32 sum:*fp32 exact:*fp32 {_CALL} group_size slot slots retained sinks"
            " window ring_slots local_window splits exact_splits parts bias_batch_stride:l"
            " bias_capacity scale:f softcap:f",
            "D MODE HAS_BIAS HAS_SOFTCAP RETAINS EVICTS BLOCK_M BLOCK_N",
        ),
        parse_signature(
            "finish",
            "maximum:*fp32 sum:*fp32 coded:*fp32 exact:*fp32 value_decoder:*U sink:*T"
            f" {_LENGTHS} output:*T {_CALL} splits exact_splits parts components stride%",
            "D CODED HAS_DECODER HAS_SINK BLOCK_M BLOCK_R",
        ),
        parse_signature(
            "observe_sum",
            f"maximum:*fp32 sum:*fp32 sink:*T {_LENGTHS} log_sum:*fp32 new_tokens first count heads"
            " parts observes",
            "HAS_SINK BLOCK",
        ),
        parse_signature(
            "observe_codes",
            "projected:*fp16 offset:*fp32 key_code:*u8 key_magnitude:*i16 key_delta:*u8"
            f" key_ratio:*fp16 {_EVICTED} job:*i32 skipped:*i32 log_sum:*fp32"
            f" mass:*fp32 {_CALL} heads_per_job jobs code_heads capacity% segments segment_length%"
            " sinks window magnitude_count magnitude_slot skipped_stride observes k_n16% k_n8%"
            " k_n4% k_n2% k_b8% k_b4% k_b2% k_bytes% d_n16% d_n8% d_n4% d_n2% d_b8% d_b4% d_b2%"
            " d_bytes% k_stride% softcap:f sign:f",
            "K16 K8 K4 K2 W16 W8 W4 W2 HAS_SOFTCAP MARKS BLOCK_M BLOCK_N",
        ),
        parse_signature(
            "observe_exact",
            "query:*T key:*T exact_key:*E retained_key:*E retained_position:?i32 active:*i32"
            f" {_EVICTED} log_sum:*fp32 mass:*fp32 {_CALL} group_size slot slots"
            " retained capacity segments segment_length sinks window ring_slots observes scale:f"
            " softcap:f",
            "D MODE HAS_SOFTCAP RETAINS BLOCK_M BLOCK_N",
        ),
        parse_signature(
            "gather",
            f"{_NEW_TOKENS} frequency:*fp32 permutation:*i32 {_LENGTHS} gathered:*fp32 batch"
            " new_tokens group_size first_layer kv_heads slots sinks window ring_slots"
            " segment_length pairs",
            "D INTERLEAVED FRAMED BLOCK_T",
        ),
        parse_signature(
            "project_joint",
            f"gathered:*fp32 encoder:*U {_LENGTHS} joint:*fp32 new_tokens group_size kv_heads"
            " code_heads components stride% sinks window",
            "D DOT BLOCK_T BLOCK_R BLOCK_K",
        ),
        parse_signature(
            "quantise_joint",
            f"joint:*fp32 step:*fp32 code:*u8 magnitude:*fp16 {_EVICTED} new_tokens code_heads"
            " capacity% sinks window segments segment_length c8 c4 c2 b4 b2 bytes stride%",
            "P8 P4 P2 EVICTS",
        ),
        parse_signature(
            "align",
            f"gathered:*fp32 encoder:*U {_LENGTHS} aligned:*fp32 new_tokens group_size kv_heads"
            " sinks window",
            "D DOT BLOCK_T BLOCK_R BLOCK_K",
        ),
        parse_signature(
            "encode",
            "gathered:*fp32 aligned:*fp32 code:*u8 magnitude:*fp16 cosine:*fp64"
            f" {_EVICTED} batch new_tokens group_size kv_heads capacity% sinks window segments"
            " segment_length magnitude_count bytes slerp_t:f",
            "D BITS MAGNITUDE ALIGNED EVICTS BLOCK_T",
        ),
        parse_signature(
            "encode_pair",
            f"gathered:*fp32 aligned:*fp32 delta:*u8 ratio:*fp16 magnitude:*fp16 {_EVICTED}"
            " new_tokens kv_heads capacity% sinks window segments segment_length magnitude_count"
            " bytes",
            "D BITS CODE_BITS MAGNITUDE ALIGNED EVICTS BLOCK_T",
        ),
        parse_signature(
            "active",
            f"position:?i32 similarity:?fp32 key_magnitude:*i16 {_EVICTED} active:*i32"
            " skipped:*i32 kv_heads retained slack capacity% magnitude_count sinks window segments"
            " segment_length",
            "EVICTS BLOCK",
        ),
        parse_signature(
            "retain",
            f"position:?i32 similarity:?fp32 range:?fp32 cosine:*fp64 {_LENGTHS}"
            " token_similarity:*fp32 slot:*i32 free:*i32 change:*i32 batch new_tokens group_size"
            " kv_heads retained slack sinks window threshold:f gamma:f",
            "POLICY ANY_HEAD BLOCK",
        ),
        parse_signature(
            "retain_store",
            f"{_NEW_TOKENS} retained_key:*E retained_value:*E slot:*i32 {_LENGTHS} new_tokens"
            " group_size first_layer kv_heads slots retained sinks window ring_slots",
            "D BLOCK_T",
        ),
        parse_signature(
            "mark",
            f"key_magnitude:*i16 value_magnitude:*i16 change:*i32 {_EVICTED} new_tokens kv_heads"
            " capacity% retained magnitude_count sinks segments segment_length",
            "EVICTS BLOCK_T",
        ),
        parse_signature(
            "store",
            f"{_NEW_TOKENS} {_EVICTED} new_tokens group_size first_layer kv_heads slots sinks"
            " ring_slots capacity",
            "D MODE EVICTS BLOCK_T",
        ),
    )
}
