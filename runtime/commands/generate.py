"""``minicache generate``: text to stdout as it comes, everything else to stderr."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minicache.runtime.errors import MiniCacheError, SessionError, TextError

if TYPE_CHECKING:
    from minicache.runtime.generated_token import GeneratedToken
    from minicache.runtime.session import Session


def add_generate_parser(subparsers: Any) -> None:
    """Adds the parser of ``generate``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "generate",
        help="continue a prompt with an exported model",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="folder that minicache-export wrote")
    parser.add_argument(
        "--prompt",
        required=True,
        default=argparse.SUPPRESS,
        help="the text to continue; - reads stdin",
    )
    parser.add_argument(
        "--max-new-tokens", type=int, default=128, metavar="N", help="at most so many"
    )
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--top-k", type=int, default=0, help="keep the k likeliest tokens; 0 all")
    parser.add_argument(
        "--top-p", type=float, default=1.0, help="keep tokens up to this probability"
    )
    parser.add_argument(
        "--min-p", type=float, default=0.0, help="keep tokens this likely next to the likeliest"
    )
    parser.add_argument(
        "--repetition-penalty", type=float, default=1.0, help="over 1: fewer repeats"
    )
    parser.add_argument("--seed", type=int, help="of the random numbers")
    parser.add_argument("--stop", action="append", default=[], help="text that ends it; repeatable")
    parser.add_argument("--chat", action="store_true", help="use the model's chat template")
    parser.add_argument("--threads", type=int, help="CPU threads; None: ONNX Runtime's choice")
    parser.add_argument(
        "--huge-pages",
        action="store_true",
        help="move weights into pages of 2 MB (CPUs): faster in some virtual machines",
    )
    parser.add_argument(
        "--max-sequence-length", type=int, metavar="C",
        help="capacity in tokens; None: what prompt and new tokens need",
    )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="no progress, no statistics")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Generates; the text streams to stdout, the statistics follow on stderr."""
    from minicache.runtime.manifest import Manifest
    from minicache.runtime.session import Session
    from minicache.runtime.tokenizer import TextTokenizer

    shaping = {
        "--top-k": arguments.top_k > 0,
        "--top-p": 0.0 < arguments.top_p < 1.0,
        "--min-p": 0.0 < arguments.min_p <= 1.0,
    }
    given = [name for name, is_given in shaping.items() if is_given]
    if arguments.temperature == 0.0 and given:
        raise SessionError(
            f"{given[0]} has no effect with --temperature 0 (greedy); add e.g. --temperature 0.7"
        )
    manifest = Manifest.load(arguments.folder)
    tokenizer = TextTokenizer(arguments.folder, manifest.bos_token_id)
    prompt = _read_prompt(arguments.prompt)
    if arguments.chat:
        ids = tokenizer.encode_chat([{"role": "user", "content": prompt}])
    else:
        ids = tokenizer.encode(prompt)
    tokenizer.check_ids(ids, manifest.vocab_size)
    needed = max(1, len(ids) + arguments.max_new_tokens)
    limit = arguments.max_sequence_length
    if limit is None:
        limit = min(needed, manifest.max_sequence_length)
    with Session(
        arguments.folder,
        max_sequence_length=limit,
        threads=arguments.threads,
        huge_pages=arguments.huge_pages,
    ) as session:
        return _generate(arguments, session, ids)


def _read_prompt(prompt: str) -> str:
    if prompt != "-":
        return prompt
    if sys.stdin is None:
        raise TextError("stdin is closed; pipe the prompt into it, or give it with --prompt")
    try:
        # The last newline is the shell's, not the text's: `echo Once | minicache generate ...`
        return sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise TextError(
            f"stdin is not UTF-8 (byte {error.start}); convert it, e.g. with iconv"
        ) from error
    except OSError as error:
        raise TextError(
            f"stdin cannot be read ({error.strerror}); pipe the prompt into it, or give it with "
            "--prompt"
        ) from error


def _generate(arguments: argparse.Namespace, session: Session, ids: list[int]) -> int:
    from minicache.runtime.progress import progress

    quiet = arguments.quiet or arguments.json
    tokens: list[GeneratedToken] = []
    with ExitStack() as stack:
        # A bar is worth its line only where reading takes longer than a moment.
        shown = sys.stderr.isatty() and len(ids) > 512
        step = stack.enter_context(
            progress("reading the prompt", total=len(ids), quiet=quiet or not shown)
        )
        stream = session.generate(
            ids,
            arguments.max_new_tokens,
            temperature=arguments.temperature,
            top_k=arguments.top_k,
            top_p=arguments.top_p,
            min_p=arguments.min_p,
            repetition_penalty=arguments.repetition_penalty,
            seed=arguments.seed,
            stop=arguments.stop,
            progress=step.advance,
        )
        try:
            for token in stream:
                stack.close()  # the bar ends before the first text
                tokens.append(token)
                if not arguments.json:
                    sys.stdout.write(token.text)
                    sys.stdout.flush()
        except (KeyboardInterrupt, MiniCacheError):
            if tokens and not arguments.json:
                print(flush=True)  # the message after it starts on a line of its own
            raise
    stats = session.last_stats
    assert stats is not None and tokens
    if arguments.json:
        content = {
            "text": "".join(token.text for token in tokens),
            "token_ids": [token.token_id for token in tokens],
            "logprobs": [token.logprob for token in tokens],
            "finish_reason": tokens[-1].finish_reason,
            **stats.to_dict(),
        }
        print(json.dumps(content, indent=1, ensure_ascii=False))
        return 0
    print(flush=True)
    if not quiet:
        print(
            f"{stats.prompt_tokens} prompt tokens ({stats.prefill_tokens_per_second:.1f}/s), "
            f"{stats.new_tokens} new ({stats.decode_tokens_per_second:.1f}/s, "
            f"{tokens[-1].finish_reason}), cache {stats.cache_bytes / 1e6:.1f} MB",
            file=sys.stderr,
        )
    return 0
