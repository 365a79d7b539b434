"""Questions about one of two similar facts that lie far back in a text."""

from __future__ import annotations

import random
from dataclasses import dataclass

from minicache.runtime.errors import TextError
from minicache.runtime.tokenizer import TextTokenizer

# A base model answers these: the question ends with the words that the fact begins with.
NAMES = (
    "the lighthouse", "the blue door", "Project Falcon", "the old bridge", "Room Nine",
    "the silver box", "the north gate", "the greenhouse",
)  # fmt: skip
FACT = "\nRemember this: the secret code for {name} is {code}.\n"
QUESTION = "\nQuestion: what is the secret code for {name}? Answer: the secret code for {name} is"
DIGITS = 6
FIRST_DEPTH, SECOND_DEPTH = (0.1, 0.45), (0.5, 0.8)  # of the filler, drawn evenly
CHARACTERS_PER_TOKEN = 8


@dataclass(frozen=True)
class NeedleCase:
    """One question.

    Attributes:
        context: tokens of text, question and answer together.
        seed: of its random choices.
        text: token ids with both facts.
        question: token ids that follow.
        answer: token ids of the digits that are right.
        depth: share of the text's tokens before the fact that is asked for.
    """

    context: int
    seed: int
    text: list[int]
    question: list[int]
    answer: list[int]
    depth: float


def make_case(filler: str, tokenizer: TextTokenizer, context: int, seed: int) -> NeedleCase:
    """Hides two codes in a piece of ``filler`` and asks for one of them.

    Raises:
        TextError: the filler is too short for the context.
    """
    random_ = random.Random(f"{context} {seed}")
    name, other = random_.sample(NAMES, 2)
    code, wrong = ("".join(random_.choices("0123456789", k=DIGITS)) for _ in range(2))
    characters = CHARACTERS_PER_TOKEN * context
    if len(filler) <= characters:
        raise TextError(f"the text has {len(filler)} characters, {characters} are needed")
    start = random_.randrange(len(filler) - characters)
    words = tokenizer.encode(filler[start : start + characters])

    def plain(text: str) -> list[int]:
        return tokenizer.encode(text, special=False)

    wanted, distractor = (
        plain(FACT.format(name=name, code=code)),
        plain(FACT.format(name=other, code=wrong)),
    )
    question, answer = plain(QUESTION.format(name=name)), plain(f" {code}")
    room = context - sum(map(len, (wanted, distractor, question, answer)))
    if room < 1 or len(words) < room:
        raise TextError(f"a context of {context} tokens cannot be filled; give another text")
    first, second = (int(room * random_.uniform(*depth)) for depth in (FIRST_DEPTH, SECOND_DEPTH))
    asked_first = random_.random() < 0.5
    facts = (wanted, distractor) if asked_first else (distractor, wanted)
    text = words[:first] + facts[0] + words[first:second] + facts[1] + words[second:room]
    at = first if asked_first else second + len(distractor)
    return NeedleCase(context, seed, text, question, answer, at / len(text))
