"""Converts the SmolLM2 GGUF file into an ONNX decoder with past keys and values.

Runs inside the private environment that ``fetch_model.py`` makes, one step per call:
``python convert_gguf.py STEP --gguf FILE --checkpoint DIR --onnx DIR`` with STEP one of
``checkpoint`` (GGUF to a transformers checkpoint), ``tokenizer``, ``export`` and ``check``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROMPT = "The capital of France is"
ANSWER = "Paris"
CHECKED_TOKENS = 8
MAX_POSITIONS = 8192


def convert_checkpoint(gguf: Path, checkpoint: Path, onnx: Path) -> None:
    """Dequantises the GGUF weights to fp32 and saves them for transformers."""
    del onnx
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    model.save_pretrained(checkpoint)


def convert_tokenizer(gguf: Path, checkpoint: Path, onnx: Path) -> None:
    """Builds tokenizer.json from the tables in the GGUF file.

    transformers 4.57 also converts it, wrongly: it loses the ``smollm`` pre-tokenizer, which splits
    numbers into digits, and prepends a BOS token that the model was not trained with.
    """
    del onnx
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(gguf).fields

    def read(name: str) -> Any:
        return fields[f"tokenizer.{name}"].contents()

    if read("ggml.pre") != "smollm":
        raise SystemExit(f"{gguf.name} has the pre-tokenizer {read('ggml.pre')!r}, not 'smollm'.")
    tokens = read("ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in read("ggml.merges")]
    control_token = 3  # GGUF token type
    special = [
        AddedToken(token, special=True, normalized=False)
        for token, kind in zip(tokens, read("ggml.token_type"), strict=True)
        if kind == control_token
    ]
    unknown = tokens[read("ggml.unknown_token_id")]
    tokenizer = Tokenizer(
        models.BPE({token: i for i, token in enumerate(tokens)}, merges, unk_token=unknown)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=tokens[read("ggml.bos_token_id")],
        eos_token=tokens[read("ggml.eos_token_id")],
        pad_token=tokens[read("ggml.padding_token_id")],
        unk_token=unknown,
        model_max_length=MAX_POSITIONS,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = read("chat_template")
    fast.save_pretrained(checkpoint)


def export_onnx(gguf: Path, checkpoint: Path, onnx: Path) -> None:
    """Exports with optimum, which compares the ONNX outputs to PyTorch's."""
    del gguf
    from optimum.exporters.onnx import main_export

    main_export(str(checkpoint), onnx, task="text-generation-with-past", local_files_only=True)


def check_model(gguf: Path, checkpoint: Path, onnx: Path) -> None:
    """Checks the tokenizer and a few greedy tokens of the ONNX model, without PyTorch."""
    del gguf, checkpoint
    import numpy as np
    import onnxruntime as ort
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(onnx / "tokenizer.json"))
    pieces = tokenizer.encode("In 1984").tokens
    if pieces != ["In", "Ġ", "1", "9", "8", "4"]:
        raise SystemExit(f"The tokenizer is wrong: 'In 1984' became {pieces}.")
    config = json.loads((onnx / "config.json").read_text())
    head_size = config["hidden_size"] // config["num_attention_heads"]
    empty = np.zeros((1, config["num_key_value_heads"], 0, head_size), np.float32)
    past = {
        f"past_key_values.{layer}.{name}": empty
        for layer in range(config["num_hidden_layers"])
        for name in ("key", "value")
    }
    session = ort.InferenceSession(onnx / "model.onnx", providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    pending = tokenizer.encode(PROMPT).ids
    written: list[int] = []
    length = 0
    for _ in range(CHECKED_TOKENS):
        feeds = {
            "input_ids": np.array([pending], np.int64),
            "attention_mask": np.ones((1, length + len(pending)), np.int64),
            "position_ids": np.arange(length, length + len(pending), dtype=np.int64)[None],
        }
        outputs = dict(zip(names, session.run(None, feeds | past), strict=True))
        length += len(pending)
        pending = [int(outputs["logits"][0, -1].argmax())]
        written += pending
        past = {name: outputs[name.replace("past_key_values", "present")] for name in past}
    text = tokenizer.decode(written)
    print(f"{PROMPT}{text}")
    if ANSWER not in text:
        raise SystemExit(f"The model continues {PROMPT!r} with {text!r}, without {ANSWER!r}.")


STEPS: dict[str, Callable[[Path, Path, Path], None]] = {
    "checkpoint": convert_checkpoint,
    "tokenizer": convert_tokenizer,
    "export": export_onnx,
    "check": check_model,
}


def main(arguments: list[str] | None = None) -> int:
    """Runs one step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--onnx", type=Path, required=True)
    chosen = parser.parse_args(arguments)
    STEPS[chosen.step](chosen.gguf, chosen.checkpoint, chosen.onnx)
    return 0


if __name__ == "__main__":
    sys.exit(main())
