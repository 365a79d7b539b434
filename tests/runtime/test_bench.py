"""``minicache bench``: who takes turns with whom, and which numbers come of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from minicache.exporter.options import ExportOptions
from minicache.exporter.pipeline import export_model
from minicache.runtime import bench as module
from minicache.runtime.bench import WARM, bench
from minicache.runtime.contestants import EXPORT, GROWN, SHARED
from minicache.runtime.errors import ModelFileError, SessionError, TextError
from minicache.runtime.manifest import Manifest
from tests.runtime.tiny_model import MAX_LENGTH, VOCABULARY, write_tiny_model

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
GROUP_QUERY, DECOMPOSED = "genai-qwen2-cpu-fp32", "onnx-llama3-gqa-optimum-fp32"


@pytest.fixture(scope="module", params=[GROUP_QUERY, DECOMPOSED])
def pair(
    request: pytest.FixtureRequest, ort_library: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """An exact export and its original."""
    original = FIXTURES / request.param
    folder = tmp_path_factory.mktemp("bench") / "out"
    export_model(original, folder, ExportOptions(mode="exact", quiet=True))
    return folder, original


class Fake:
    """A contestant whose calls take the seconds that it is told, by a clock of its own."""

    now = 0.0
    log: list[tuple[str, object]]

    def __init__(self, name: str, seconds: float) -> None:
        self.name, self._seconds, self.length = name, seconds, 0

    def read(self, ids: np.ndarray) -> None:
        Fake.log.append((self.name, len(ids)))
        Fake.now += 10 * self._seconds
        self.length = len(ids)

    def step(self, token: int) -> None:
        Fake.log.append((self.name, token))
        Fake.now += self._seconds
        self.length += 1

    def kv_bytes(self, tokens: int) -> int:
        assert self.length == tokens, "asked when the cache is as long as the context"
        return 7 * tokens

    def kv_bytes_in_step(self, tokens: int) -> int:
        return 2 * self.kv_bytes(tokens)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Fake]]:
    Fake.now, Fake.log = 0.0, []
    made = [Fake("a", 0.5), Fake("b", 0.25)]
    monkeypatch.setattr(module.time, "perf_counter", lambda: Fake.now)
    monkeypatch.setattr(module, "open_contestants", lambda *_: made)
    yield made


def test_numbers_by_hand(fakes: list[Fake], tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    result = bench(folder, contexts=[20, 30], budget=1000, rounds=2, steps=3, quiet=True)
    assert result.contexts == [20, 30]
    first, second = result.of_context(20)
    assert (first.name, second.name) == ("a", "b")
    assert first.prompt_tokens == 20 - WARM - 2 * 3
    assert first.first_token_seconds.median == 5.0 and second.step_seconds.median == 0.25
    assert first.tokens_per_second == 2.0 and second.tokens_per_second == 4.0
    assert first.kv_bytes == 140 and first.kv_bytes_in_step == 280 and first.rows_in_budget == 3


def test_they_take_turns_on_the_same_tokens(fakes: list[Fake], tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    bench(folder, contexts=[20], rounds=2, steps=3, quiet=True)
    steps = [entry for entry in Fake.log if entry not in {("a", 12), ("b", 12)}]
    assert [token for name, token in steps if name == "a"] == [
        token for name, token in steps if name == "b"
    ]
    names = [name for name, _ in steps]
    turns = [names[0], *(b for a, b in itertools.pairwise(names) if a != b)]
    assert len(turns) in (4, 5, 6) and set(turns) == {"a", "b"}, "rounds, not one after the other"


def test_a_long_prompt_is_read_once_and_a_short_one_three_times(
    fakes: list[Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    bench(folder, contexts=[20], rounds=1, steps=1, quiet=True)
    assert Fake.log.count(("a", 17)) == module.MOST_READINGS
    Fake.log.clear()
    monkeypatch.setattr(module, "READING_SECONDS", 4.9)
    bench(folder, contexts=[20], rounds=1, steps=1, quiet=True)
    assert Fake.log.count(("a", 17)) == 1


def test_bytes_of_every_way_to_run_a_model(pair: tuple[Path, Path]) -> None:
    folder, original = pair
    result = bench(
        folder, original, contexts=[24, 40], budget=10**6, threads=1, rounds=2, steps=2, quiet=True
    )
    manifest = Manifest.load(folder)
    one = 2 * manifest.num_layers * manifest.num_kv_heads * manifest.head_dim * 4
    names = [EXPORT, GROWN, SHARED] if original.name == GROUP_QUERY else [EXPORT, GROWN]
    for context in (24, 40):
        rows = result.of_context(context)
        assert [row.name for row in rows] == names
        for row in rows:
            assert row.kv_bytes == context * one
            assert row.kv_bytes_in_step == row.kv_bytes * (2 if row.name == GROWN else 1)
            assert row.rows_in_budget == 10**6 // row.kv_bytes_in_step
            assert row.tokens_per_second > 0 < row.first_token_seconds.p25


def test_an_export_alone(ort_library: Path, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny", "slerp")
    result = bench(folder, contexts=[64], threads=1, rounds=1, steps=1, quiet=True)
    assert [row.name for row in result.rows] == [EXPORT]
    (folder / "tokenizer.json").unlink()  # then it reads random tokens
    bench(folder, contexts=[64], threads=1, rounds=1, steps=1, quiet=True)


def test_a_short_text_is_read_again_from_its_beginning(fakes: list[Fake], tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    (tmp_path / "text.txt").write_text("abc")
    bench(folder, contexts=[30], text=tmp_path / "text.txt", rounds=1, steps=6, quiet=True)
    tokens = [token for name, token in Fake.log if name == "a"][-6:]
    assert len(set(tokens)) == 3 and tokens[:3] == tokens[3:]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"contexts": []}, "no context"),
        ({"contexts": [0]}, "context is 0"),
        ({"contexts": [WARM + 40]}, "leave nothing of it to a prompt"),
        ({"contexts": [MAX_LENGTH + 1]}, f"--max-sequence-length {MAX_LENGTH + 1}"),
        ({"budget": 0}, "budget is 0"),
        ({"rounds": 0}, "rounds is 0"),
        ({"steps": -1}, "steps is -1"),
    ],
)
def test_sizes_that_do_not_fit(tmp_path: Path, options: dict[str, object], said: str) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    with pytest.raises(SessionError, match=said):
        bench(folder, **{"contexts": [64], "quiet": True, **options})  # type: ignore[arg-type]


def test_what_is_no_baseline(ort_library: Path, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    with pytest.raises(SessionError, match=f"the export has {VOCABULARY}: it was not made from"):
        bench(folder, FIXTURES / "onnx-gemma2-optimum-fp32", contexts=[64], quiet=True)
    with pytest.raises(ModelFileError):
        bench(folder, tmp_path / "nothing", contexts=[64], quiet=True)
    (tmp_path / "empty.txt").write_text("\f")
    with pytest.raises(TextError):
        bench(folder, contexts=[64], text=tmp_path / "empty.txt", quiet=True)
