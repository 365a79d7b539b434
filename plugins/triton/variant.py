"""A kernel as it is compiled: its types and compile-time values, and the text that names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minicache.plugins.triton.signatures import (
    ELEMENT_TYPES,
    HINT,
    LETTERS,
    SIGNATURES,
    Signature,
)


@dataclass(frozen=True)
class Variant:
    """One compilation of one kernel.

    Attributes:
        kernel: its name.
        types: what each of the signature's letters stands for, in the order of the letters.
        constants: the value of each constexpr, in the signature's order; flags are 0 and 1.
        hinted: pointers and marked integers are multiples of 16 at run time.
    """

    kernel: str
    types: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int], ...]
    hinted: bool = True

    @property
    def key(self) -> str:
        """The text by which C++ asks for it."""
        pairs = [f"{name}={value}" for name, value in (*self.types, *self.constants)]
        return "|".join([self.kernel, *pairs, f"hint={int(self.hinted)}"])


def make_variant(
    kernel: str,
    types: Mapping[str, str],
    constants: Mapping[str, int],
    *,
    hinted: bool = True,
    signatures: Mapping[str, Signature] = SIGNATURES,
) -> Variant:
    """Checks and orders types and values.

    Args:
        kernel: name of the kernel.
        types: letter to element type; letters that the kernel does not use are left out.
        constants: constexpr to value.
        hinted: whether arguments are multiples of 16.
        signatures: the table to judge by.

    Raises:
        ValueError: no such kernel, or a type or value is missing, unknown or impossible.
    """
    if kernel not in signatures:
        raise ValueError(f"there is no kernel {kernel!r}; there are {', '.join(signatures)}")
    signature = signatures[kernel]
    for letter in signature.letters:
        if types.get(letter) not in ELEMENT_TYPES:
            raise ValueError(
                f"kernel {kernel!r} needs a type {letter} of {', '.join(ELEMENT_TYPES)}, "
                f"not {types.get(letter)!r}"
            )
    if set(constants) != set(signature.constants):
        raise ValueError(
            f"kernel {kernel!r} needs the constants {', '.join(signature.constants)}, "
            f"not {', '.join(constants)}"
        )
    return Variant(
        kernel,
        tuple((letter, types[letter]) for letter in signature.letters),
        tuple((name, int(constants[name])) for name in signature.constants),
        hinted,
    )


def parse_key(key: str, *, signatures: Mapping[str, Signature] = SIGNATURES) -> Variant:
    """The variant that a key names.

    Raises:
        ValueError: not the key of a variant.
    """
    kernel, *pairs = key.split("|")
    values = dict(pair.partition("=")[::2] for pair in pairs)
    hint = values.pop("hint", "")
    types = {letter: values.pop(letter) for letter in LETTERS if letter in values}
    try:
        constants = {name: int(value) for name, value in values.items()}
        variant = make_variant(kernel, types, constants, hinted=hint == "1", signatures=signatures)
    except ValueError as error:
        raise ValueError(f"{key!r} is no kernel variant: {error}") from error
    if variant.key != key:
        raise ValueError(f"{key!r} is no kernel variant; written in order it is {variant.key!r}")
    return variant


def triton_types(variant: Variant, signature: Signature) -> dict[str, str]:
    """Type of every argument as Triton spells it: ``*fp16``, ``i32``, ``fp32``, ``constexpr``."""
    types = dict(variant.types)
    spelled = {"i": "i32", "l": "i64", "f": "fp32"}
    out = {
        argument.name: f"*{types.get(argument.element, argument.element)}"
        if argument.kind == "p"
        else spelled[argument.kind]
        for argument in signature.arguments
    }
    return out | dict.fromkeys(signature.constants, "constexpr")


def divisors(variant: Variant, signature: Signature) -> list[int]:
    """Per run-time argument, what the compiled code counts on a multiple of; 1: of nothing."""
    return [HINT if variant.hinted and argument.hinted else 1 for argument in signature.arguments]
