"""A tokenizer for tiny test models: one token per byte."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors


def byte_tokenizer(begin: str | None = None) -> Tokenizer:
    """Byte-level BPE without merges: 256 tokens, lossless on any text.

    Args:
        begin: a special token that begins every text, token 256.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if begin is not None:
        tokenizer.add_special_tokens([begin])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", special_tokens=[(begin, tokenizer.token_to_id(begin))]
        )
    return tokenizer
