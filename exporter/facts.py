"""What the files beside a model say about it: ``config.json``, ``genai_config.json`` and others.

A graph does not say where a context ends or which token ends a text; these files do. All of them
are optional, and a file that is no JSON or a fact of the wrong type counts as absent: the graph
stays the authority.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minicache.exporter.attention_facts import AttentionFacts
from minicache.exporter.read_attention_facts import read_attention_facts


@dataclass(frozen=True)
class ModelFacts:
    """Facts from the configuration files; None or empty where no file says.

    Attributes:
        max_positions: longest context the model was made for.
        vocab_size: entries of the vocabulary.
        head_dim: size of one attention head.
        eos_token_ids: tokens that end a text.
        bos_token_id: token that begins a text.
        model_type: e.g. ``llama``.
        attention: what the graph should agree with (``deviations``).
    """

    max_positions: int | None = None
    vocab_size: int | None = None
    head_dim: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    model_type: str | None = None
    attention: AttentionFacts = field(default_factory=AttentionFacts)


# Sizes and token ids are below this; beyond it a file is damaged.
_LARGEST = 2**31 - 1


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():  # a pipe would never end
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return _section(content)


def _section(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _size(*values: Any) -> int | None:
    """The first of the values that is a positive whole number."""
    sizes = (v for v in values if isinstance(v, int) and not isinstance(v, bool))
    return next((v for v in sizes if 0 < v <= _LARGEST), None)


def _ids(value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    ids = (v for v in values if isinstance(v, int) and not isinstance(v, bool))
    return tuple(v for v in ids if 0 <= v <= _LARGEST)


def read_facts(path: Path | str) -> ModelFacts:
    """Reads the configuration files of a model folder, or of the folder of a model file."""
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    config = _read(folder / "config.json")
    # Multimodal configurations nest the decoder's.
    config = config | _section(config.get("text_config"))
    genai = _section(_read(folder / "genai_config.json").get("model"))
    decoder = _section(genai.get("decoder"))
    generation = _read(folder / "generation_config.json")
    heads, hidden = _size(config.get("num_attention_heads")), _size(config.get("hidden_size"))
    head_dim = _size(config.get("head_dim"), decoder.get("head_size"))
    if head_dim is None and heads and hidden:
        head_dim = hidden // heads
    eos = generation.get("eos_token_id", config.get("eos_token_id", genai.get("eos_token_id")))
    bos = _ids(
        generation.get("bos_token_id", config.get("bos_token_id", genai.get("bos_token_id")))
    )
    positions = (config.get("max_position_embeddings"), config.get("n_positions"))
    model_type = config.get("model_type") or genai.get("type")
    return ModelFacts(
        max_positions=_size(
            *positions, config.get("max_sequence_length"), genai.get("context_length")
        ),
        vocab_size=_size(config.get("vocab_size"), genai.get("vocab_size")),
        head_dim=head_dim,
        eos_token_ids=_ids(eos),
        bos_token_id=bos[0] if bos else None,
        model_type=model_type if isinstance(model_type, str) else None,
        attention=read_attention_facts(config, genai),
    )
