"""Nodes of every mode as TensorRT has them, and packs of kernels that the fake driver loads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from minicache.exporter import schemas
from minicache.plugins.gpu_plan import GpuPlan, Launch, PlacedTensor, gpu_plan
from minicache.plugins.triton.kernel_pack import PackedImage, PackedKernel
from minicache.plugins.triton.signatures import HINT, SIGNATURES
from minicache.plugins.triton.variant import parse_key
from tests.plugins.gpu.fake_driver import write_kernels
from tests.plugins.gpu.walk_modes import MODES, SMALL

DTYPES = {"T": "float16", "int32": "int32", "int8": "int8", "fp16": "float16", "fp32": "float32"}
KINDS = {"int": "i", "ints": "i", "float": "f", "string": "s"}
WARPS, SHARED, NULL_POINTERS = 4, 512, 2


def nodes_of(mode: str) -> list[TrtNode]:
    """One node per slot of a group in a mode of ``walk_modes``."""
    attributes, _ = MODES[mode](SMALL)
    slots = range(attributes["group_size"])
    return [TrtNode({**attributes, "group_slot": slot}) for slot in slots]


ALL_NODES = {
    f"{mode}, slot {slot}": (mode, slot)
    for mode in MODES
    for slot in range(MODES[mode](SMALL)[0]["group_size"])
}


def node_of(name: str) -> TrtNode:
    """The node of a name in ``ALL_NODES``."""
    mode, slot = ALL_NODES[name]
    return nodes_of(mode)[slot]


class TrtNode:
    """A node: its names, and its tensors for calls of any size.

    Attributes:
        attributes: complete.
        inputs: names in order.
        outputs: names in order, as on TensorRT.
    """

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        self.attributes = schemas.attributes_with_defaults(attributes)
        self.inputs = schemas.input_names(self.attributes)
        self.outputs = schemas.output_names(self.attributes, threaded=True)

    @property
    def states(self) -> list[str]:
        """The inputs that come back as outputs, in order."""
        return [name for name in self.inputs if name.startswith("past_") and name[5:] != "lengths"]

    def fields(self, **more: int) -> str:
        """The attributes as a graph gives them, for the driver's ``create``."""
        words = [f"{name}=i:{value}" for name, value in more.items()]
        for attribute in schemas.ATTRIBUTES:
            value = self.attributes[attribute.name]
            text = ",".join(map(str, value)) if attribute.kind == "ints" else str(value)
            if text:
                words.append(f"{attribute.name}={KINDS[attribute.kind]}:{text}")
        return " ".join(words)

    def tensors(
        self, batch: int = 1, tokens: int = 1, capacity: int = 32, retained: int = 4
    ) -> dict[str, PlacedTensor]:
        """The inputs of a call, each at an address of its own, and ``attention``."""
        sizes = {"batch": batch, "capacity": capacity, "retained": retained}
        made = {}
        for place, name in enumerate([*self.inputs, "attention"]):
            dtype, shape = self._describe(name, tokens, sizes)
            made[name] = PlacedTensor(dtype, shape, 0x100000 * (1 + place))
        return made

    def _describe(
        self, name: str, tokens: int, sizes: dict[str, int]
    ) -> tuple[str, tuple[int, ...]]:
        a = self.attributes
        if name in self.states:
            dtypes = {state.name: state.dtype for state in schemas.STATES}
            shape = schemas.state_shape(name[5:], a, **sizes)
            return DTYPES[dtypes[name[5:]].split("|")[-1]], shape
        rows = sizes["batch"], tokens
        if name[:2] in ("k_", "v_"):
            return "float16", (*rows, a["kv_num_heads"] * a["head_size"])
        if name == "attention":
            return "float16", (*rows, a["num_heads"] * a["head_size"])
        (found,) = (tensor for tensor in schemas.INPUTS if tensor.name == name)
        bits = a["key_bits" if name.startswith("key") else "value_bits"]
        letters = {"B": sizes["batch"], "S": tokens, "C": sizes["capacity"], "R": sum(bits[1::2])}
        letters |= {"H": a["num_heads"], "Hk": a["kv_num_heads"], "Hc": a["code_heads"]}
        letters |= {"D": a["head_size"], "G": a["group_size"], "D_rot": a["head_size"]}
        text = found.shape.replace("/", "//").replace("B or 1", "B")
        return DTYPES[found.dtype.split("|")[-1]], tuple(eval(text, {}, letters))

    def plan(self, tensors: Mapping[str, PlacedTensor], **where: int) -> GpuPlan:
        """The launches of a call; ``where`` as in ``gpu_plan``."""
        return gpu_plan(self.attributes, tensors, **where)

    def keys(self, *calls: Mapping[str, PlacedTensor]) -> set[str]:
        """Kernels that calls launch."""
        return {launch.key for call in calls for launch in self.plan(call).launches}


def words_of(tensors: Mapping[str, PlacedTensor], names: Iterable[str]) -> str:
    """Tensors of a call as words of the driver."""
    parts = [tensors[name] for name in names]
    return " ".join(
        f"{part.dtype}:{'x'.join(map(str, part.shape))}@{part.address:x}" for part in parts
    )


def profile_words(node: TrtNode, *calls: Mapping[str, PlacedTensor]) -> str:
    """The inputs of a profile, from its smallest, usual and largest call."""
    words = []
    for name in node.inputs:
        shapes = ["x".join(map(str, call[name].shape)) for call in calls]
        words.append(f"{calls[0][name].dtype}:{';'.join(shapes)}")
    return " ".join(words)


def write_fake_pack(folder: Path, keys: Iterable[str]) -> Path:
    """Writes kernels whose names in the fake driver's log are ``label_of`` their keys."""
    write_kernels(folder, *map(_fake_kernel, sorted(keys)))
    return folder


def _fake_kernel(key: str) -> PackedKernel:
    variant = parse_key(key)
    arguments = SIGNATURES[variant.kernel].arguments
    kinds = "".join(argument.kind for argument in arguments) + NULL_POINTERS * "p"
    image = PackedImage(80, False, WARPS, SHARED, f"IMAGE {label_of(key)} {kinds}\0".encode())
    named = tuple(
        (argument.name, argument.kind, HINT if argument.hinted and variant.hinted else 1)
        for argument in arguments
    )
    return PackedKernel(key, variant.kernel, named, NULL_POINTERS, (image,))


def label_of(key: str) -> str:
    """A key as one word."""
    return key.replace("|", ";")


def launch_line(launch: Launch, stream: int) -> str:
    """What the fake driver writes for a launch."""
    grid = ",".join(map(str, launch.grid))
    words = [_argument(kind, value) for kind, value in launch.arguments] + NULL_POINTERS * ["p:0"]
    return (
        f"launch {label_of(launch.key)} grid {grid} block {32 * WARPS},1,1 shared {SHARED} "
        f"stream {stream:x} extra 0 arguments {' '.join(words)}"
    )


def _argument(kind: str, value: float) -> str:
    if kind == "p":
        return f"p:{int(value):x}"
    return f"{kind}:{value:g}" if kind == "f" else f"{kind}:{value}"


def output_words(node: TrtNode, tensors: Mapping[str, PlacedTensor], names: Sequence[str]) -> str:
    """Addresses of the attention, then of states, for ``enqueue``."""
    places = [tensors["attention"].address, *(tensors[name].address for name in names)]
    return " ".join(f"{place:x}" for place in places)
