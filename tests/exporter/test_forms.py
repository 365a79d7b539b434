"""Every form is rewritten to the same logits, whatever exporters have put between its nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from minicache.exporter.find_attention import find_attention
from minicache.exporter.io import save_model
from minicache.runtime.errors import UnsupportedModelError
from tests.exporter.form_graphs import GRAPHS, REFUSED
from tests.exporter.test_parity import prove


@pytest.mark.parametrize("name", GRAPHS)
def test_the_form_is_found(name: str) -> None:
    found = find_attention(GRAPHS[name].model())
    (site,) = found.sites
    assert found.form == site.form == GRAPHS[name].form
    assert (site.num_heads, site.num_kv_heads, site.head_dim) == (2, 2, 4)


@pytest.mark.usefixtures("ort_library")
@pytest.mark.parametrize("name", GRAPHS)
def test_the_logits_stay(name: str, tmp_path: Path) -> None:
    source = save_model(GRAPHS[name].model(), tmp_path / "source")
    report = prove(source, tmp_path / "out")
    assert report.max_relative_difference < 1e-5


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_such_form_is_refused(name: str) -> None:
    words, graph = REFUSED[name]
    with pytest.raises(UnsupportedModelError, match=words):
        find_attention(graph.model())


def test_facts_of_the_nodes() -> None:
    def site(name: str) -> tuple[float, float, int]:
        found = find_attention(GRAPHS[name].model()).sites[0]
        return found.scale, found.softcap, found.local_window

    assert site("scale behind the mask") == (0.5 / 8, 0, 0)
    assert site("Attention over Concat") == (0.5, 0, 0)
    assert site("Attention over Concat, mask to add, softcap") == (0.5, 3, 3)
    assert site("Attention of four dimensions") == (pytest.approx(0.3), 0, 0)
    assert site("MultiHeadAttention with its own cache") == (pytest.approx(0.7), 0, 3)


def test_a_sink_joins_the_softmax() -> None:
    site = find_attention(GRAPHS["head sink"].model()).sites[0]
    assert site.head_sink is not None and site.head_sink.name == "sink"
