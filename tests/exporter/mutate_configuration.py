"""Mutations of the JSON and tokenizer files beside a model."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

from tests.exporter.mutate_bytes import FileMutation

JSON_FILES = ("config.json", "genai_config.json", "generation_config.json")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                   "chat_template.jinja", "tokenizer.model", "vocab.json")  # fmt: skip
ODD_VALUES = (
    None, True, -1, 0, 1, 1e308, 10**30, -(10**30), 2**63, 3.5, "8", "", [], {}, [[]],
    [1, "a", None], [10**30], {"model": {}}, "../../etc/passwd", "{{ 7 * 7 }}",
)  # fmt: skip


def _odd_json(rng: random.Random, content: bytes) -> bytes:
    broken: tuple[bytes, ...] = (
        b"", b"null", b"[]", b"3", b'"text"', b"{", b"\xff\xfe{}", b"\x00" * 100, b"{}" * 2,
        b"[" * 200_000, b'{"a":' * 50_000, b"9" * 6000, b'{"vocab_size": NaN}', b"\xef\xbb\xbf{}",
        b'{"max_position_embeddings": ' + b"9" * 5000 + b"}", content[: len(content) // 2],
    )  # fmt: skip
    return rng.choice(broken)


def _break_json(folder: Path, rng: random.Random) -> None:
    name = rng.choice((*JSON_FILES, *TOKENIZER_FILES))
    file = folder / name
    if file.exists() and not file.is_file():
        return
    content = file.read_bytes() if file.is_file() else b"{}"
    if rng.random() < 0.2:
        file.unlink(missing_ok=True)
        rng.choice((file.mkdir, lambda: os.mkfifo(file), lambda: file.symlink_to(name)))()
        return
    file.write_bytes(_odd_json(rng, content))


def _odd_facts(folder: Path, rng: random.Random) -> None:
    """Every fact that we read, of a wrong type or beyond reason."""
    plain = (
        "max_position_embeddings", "n_positions", "vocab_size", "head_dim", "hidden_size",
        "num_attention_heads", "eos_token_id", "bos_token_id", "model_type", "text_config",
        "sliding_window", "layer_types", "num_hidden_layers", "architectures", "rope_scaling",
        "attn_logit_softcapping", "final_logit_softcapping", "num_key_value_heads",
    )  # fmt: skip
    for name in JSON_FILES:
        try:
            content = json.loads((folder / name).read_text()) if (folder / name).is_file() else {}
        except (ValueError, RecursionError):
            content = {}
        if not isinstance(content, dict) or (folder / name).is_dir():
            continue
        targets = [content]
        if name == "genai_config.json" and isinstance(content.get("model"), dict):
            targets = [content["model"], content["model"].get("decoder")]
        for target in (target for target in targets if isinstance(target, dict)):
            keys = [*target, *plain, "context_length", "head_size", "type", "decoder"]
            for key in rng.sample(keys, min(len(keys), rng.choice((1, 3, 9)))):
                target[key] = rng.choice(ODD_VALUES)
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_text(json.dumps(content))


def _no_side_files(folder: Path, rng: random.Random) -> None:
    for name in JSON_FILES:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


MUTATIONS: dict[str, FileMutation] = {
    change.__name__.strip("_"): change for change in (_break_json, _odd_facts, _no_side_files)
}
