"""The table of arguments: each kernel agrees with it, and keys are read as they are written."""

from __future__ import annotations

import importlib

import pytest

from minicache.plugins.triton.signatures import SIGNATURES, parse_signature
from minicache.plugins.triton.variant import divisors, make_variant, parse_key, triton_types

KEY = "finish|T=bf16|U=fp32|D=64|CODED=1|HAS_DECODER=0|HAS_SINK=0|BLOCK_M=16|BLOCK_R=64|hint=1"


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_kernel_takes_what_the_table_says(name: str) -> None:
    """Names in order: at run time, then at compile time."""
    pytest.importorskip("triton")
    kernel = getattr(importlib.import_module(f"minicache.plugins.triton.{name}"), name)
    signature = SIGNATURES[name]
    arguments = [argument.name for argument in signature.arguments]
    assert list(kernel.arg_names) == [*arguments, *signature.constants]


def test_the_notation_of_the_table() -> None:
    """Pointers, their series, hints, and the kinds of numbers."""
    signature = parse_signature("k", "x*2:*T y:*u8 z:?i32 n stride% big:l scale:f", "D BLOCK")
    assert [(a.name, a.kind, a.element, a.hinted) for a in signature.arguments] == [
        ("x_0_ptr", "p", "T", True),
        ("x_1_ptr", "p", "T", True),
        ("y_ptr", "p", "u8", True),
        ("z_ptr", "p", "i32", False),
        ("n", "i", "", False),
        ("stride", "i", "", True),
        ("big", "l", "", False),
        ("scale", "f", "", False),
    ]
    assert signature.letters == ("T",)
    assert signature.constants == ("D", "BLOCK")


def test_a_key_is_read_as_it_was_written() -> None:
    """Types, constants and hint, in the order of the table."""
    variant = parse_key(KEY)
    assert variant.key == KEY
    assert variant.types == (("T", "bf16"), ("U", "fp32"))
    assert dict(variant.constants)["D"] == 64
    assert not parse_key(KEY[:-1] + "0").hinted


def test_types_and_divisors_of_a_variant() -> None:
    """As Triton spells types; without hints nothing counts on a multiple."""
    signature = SIGNATURES["finish"]
    variant = parse_key(KEY)
    types = triton_types(variant, signature)
    assert (types["sink_ptr"], types["value_decoder_ptr"]) == ("*bf16", "*fp32")
    assert (types["sum_ptr"], types["first"], types["D"]) == ("*fp32", "i32", "constexpr")
    named = {
        a.name: d for a, d in zip(signature.arguments, divisors(variant, signature), strict=True)
    }
    assert (named["sum_ptr"], named["stride"], named["first"]) == (16, 16, 1)
    assert set(divisors(parse_key(KEY[:-1] + "0"), signature)) == {1}


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("finisch|T=fp16", "there is no kernel 'finisch'"),
        (KEY.replace("bf16", "int8"), "needs a type T of fp16, bf16, fp32, not 'int8'"),
        (KEY.replace("|D=64", ""), "needs the constants D, CODED"),
        (KEY.replace("D=64|CODED=1", "CODED=1|D=64"), "written in order it is 'finish"),
        (KEY.replace("D=64", "D=x"), "invalid literal"),
        (KEY.removesuffix("|hint=1"), "written in order it is 'finish"),
    ],
)
def test_other_texts_are_no_keys(key: str, words: str) -> None:
    """The refusal names the text and what is wrong with it."""
    with pytest.raises(ValueError, match="is no kernel variant") as refused:
        parse_key(key)
    assert words in str(refused.value)


def test_flags_may_be_given_as_booleans() -> None:
    """A key has numbers only."""
    variant = make_variant(
        "store", {"T": "fp16", "E": "fp16"}, {"D": 8, "MODE": True, "EVICTS": False, "BLOCK_T": 4}
    )
    assert variant.key == "store|T=fp16|E=fp16|D=8|MODE=1|EVICTS=0|BLOCK_T=4|hint=1"
