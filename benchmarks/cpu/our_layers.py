"""Layers of our operator with caches full of random tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cpu.formats import Format
from benchmarks.cpu.layer_chain import Array, LayerChain, Layers
from benchmarks.cpu.step_shape import StepShape, random_half, random_like
from minicache.exporter import schemas
from minicache.plugins.reference import new_state
from minicache.plugins.reference.state import Span

Attributes = dict[str, Any]


def node_attributes(form: Format, shape: StepShape, slot: int = 0) -> Attributes:
    """Complete attributes of a group's node."""
    heads = {"num_heads": shape.heads, "kv_num_heads": shape.kv_heads}
    given = {**heads, "head_size": shape.head_size, **form.attributes, "group_slot": slot}
    return schemas.attributes_with_defaults(given)


def coded_spans(attributes: Attributes, shape: StepShape) -> list[tuple[int, int]]:
    """Per row the positions that a call reads as codes."""
    sinks, window = attributes["sinks"], attributes["window"]
    spans = [Span(total - shape.new_tokens, total, sinks, window) for total in shape.totals]
    return [(sinks, max(sinks, span.c0)) for span in spans]


def full_state(form: Format, shape: StepShape, seed: int) -> dict[str, Array]:
    """A group's state with random content, as if all tokens before the call had been read."""
    rng = np.random.default_rng(seed)
    attributes = node_attributes(form, shape)
    exact = form.model_dtype if not form.coded else np.dtype(np.float16)
    retained = round(form.retained * shape.capacity)
    # Zeros that are never touched cost nothing.
    state = new_state(attributes, shape.batch, shape.capacity, retained, exact)
    for name, array in state.items():
        if name.endswith(("magnitude", "ratio")):
            state[name] = np.abs(random_half(rng, array.shape)) + np.float16(0.01)
        elif not name.startswith(("retained_position", "retained_simil", "similarity")):
            state[name] = random_like(rng, array.shape, array.dtype)
    if retained:
        state["retained_similarity"][...] = rng.uniform(0, 0.5, (shape.batch, retained))
        for row, (begin, end) in enumerate(coded_spans(attributes, shape)):
            places = np.sort(rng.permutation(np.arange(begin, end))[:retained])
            state["retained_position"][row, : len(places)] = places
            for name in ("key_magnitude", "value_magnitude"):
                state[name][row, :, places] *= -1  # the sign marks a retained token
    return state


def tables(attributes: Attributes, rng: np.random.Generator) -> dict[str, Array]:
    """Constant inputs of a node: small random numbers, as exports for CPUs hold them."""
    kv_heads, size, code_heads = (
        attributes[n] for n in ("kv_num_heads", "head_size", "code_heads")
    )
    joint = attributes["group_size"] * kv_heads // code_heads * size
    made: dict[str, Array] = {}
    for name in schemas.input_names(attributes):
        components = sum(attributes["value_bits" if "value" in name else "key_bits"][1::2])
        if name.endswith("decoder"):
            made[name] = random_half(rng, (kv_heads, components, size))
        elif name.endswith("encoder"):
            made[name] = random_half(rng, (code_heads, components, joint))
        elif name.endswith("step"):
            made[name] = np.full((code_heads, components), 0.05, np.float32)
        elif name == "rope_frequencies":
            made[name] = (1e4 ** (-np.arange(0, size, 2) / size)).astype(np.float32)
    return made


def our_layers(form: Format, shape: StepShape, groups: int, threads: int, library: Path) -> Layers:
    """The layers of ``groups`` groups.

    All first layers of groups come before all second ones: between two readings of a code all the
    others are read, as in a model the weights of a layer are.
    """
    rng = np.random.default_rng(0)

    def new(heads: int) -> Array:
        form_of = shape.batch, shape.new_tokens, heads * shape.head_size
        return random_like(rng, form_of, form.model_dtype)

    chain = LayerChain(new(shape.heads))
    known = {name: chain.input(name, array) for name, array in shape.lengths().items()}
    known |= {name: chain.input(name, new(shape.kv_heads)) for name in ("key", "value")}
    for group in range(groups):
        for name, array in full_state(form, shape, group).items():
            chain.input(f"past_{name}_{group}", array)
    for slot in range(form.group):
        attributes = node_attributes(form, shape, slot)
        for group in range(groups):
            constants = {
                name: chain.constant(f"{name}_{slot}_{group}", array)
                for name, array in tables(attributes, rng).items()
            }
            inputs = []
            for name in schemas.input_names(attributes):
                if name == "query":
                    inputs.append(chain.query)
                elif name in known or name in constants:
                    inputs.append(known.get(name) or constants[name])
                elif name[:2] in ("k_", "v_"):
                    inputs.append(known["key" if name[0] == "k" else "value"])
                else:
                    inputs.append(f"{name}_{group}")
            outputs = [f"attention_{slot}_{group}"]
            for name in schemas.output_names(attributes)[1:]:
                past = f"{name.replace('present', 'past')}_{group}"
                outputs.append(chain.output(f"{name}_{group}", past))
            given = {k: list(v) if isinstance(v, tuple) else v for k, v in attributes.items()}
            given = {k: v for k, v in given.items() if v != []}
            chain.layer(chain.node(schemas.OP_TYPE, inputs, outputs, schemas.DOMAIN, **given))
    return chain.open(threads, library, opset=21)
