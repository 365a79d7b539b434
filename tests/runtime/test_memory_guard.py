"""A cache that cannot fit is refused before anything of it is allocated."""

from __future__ import annotations

from pathlib import Path

import pytest

from minicache.runtime import memory_guard, open_model
from minicache.runtime.errors import SessionError
from tests.runtime.conftest import OpenTiny
from tests.runtime.tiny_model import VARIANTS


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_largest_context_is_named_and_fits(
    open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    whole = open_tiny(variant, batch_size=3)
    needed = memory_guard.cache_bytes(whole.manifest, 3, 160)
    assert needed == whole.cache_bytes
    room = needed * 2 // 3
    monkeypatch.setattr(open_model, "available_bytes", lambda: room)
    most = memory_guard.largest_context(whole.manifest, 3, room)
    assert 0 < most < 160 and most % 16 == 0
    with pytest.raises(SessionError, match=f"needs .* MB, .* max_sequence_length={most} or less"):
        open_tiny(variant, batch_size=3)
    assert open_tiny(variant, batch_size=3, max_sequence_length=most).cache_bytes <= room
    with pytest.raises(SessionError, match="does not fit into memory"):
        open_tiny(variant, batch_size=3, max_sequence_length=most + 1)
    assert open_tiny(variant, batch_size=3, overcommit=True).cache_bytes == needed
    monkeypatch.setattr(open_model, "available_bytes", lambda: 10)
    with pytest.raises(SessionError, match="not even one of 16 tokens fits"):
        open_tiny(variant)


def test_what_a_system_does_not_tell_is_not_asked(
    open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory_guard, "_MEMINFO", tmp_path / "none")
    monkeypatch.setattr(memory_guard, "_CGROUP", tmp_path)
    assert memory_guard.available_bytes() is None
    open_tiny()


def test_a_containers_limit_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable:    4000 kB\n")
    monkeypatch.setattr(memory_guard, "_MEMINFO", meminfo)
    monkeypatch.setattr(memory_guard, "_CGROUP", tmp_path)
    assert memory_guard.available_bytes() == 4000 * 1024
    (tmp_path / "memory.current").write_text("1000000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 250000\n")
    for limit, expected in (("max", 4000 * 1024), ("2000000", 1250000)):
        (tmp_path / "memory.max").write_text(limit + "\n")
        assert memory_guard.available_bytes() == expected
