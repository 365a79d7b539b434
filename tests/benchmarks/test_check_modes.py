"""The table of modes: a model that agrees, one that is refused, and kernels that do not agree."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import check_modes
from tests.exporter.node_by_node import NodeByNode

FIXTURES = Path(__file__).parents[1] / "fixtures"
AGREES = FIXTURES / "genai-llama2-mha-cpu-fp32"
REFUSED = FIXTURES / "onnx-mistral-sw-optimum-fp32"


@pytest.mark.slow
@pytest.mark.usefixtures("ort_library")
def test_rows_of_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows_file = tmp_path / "rows.json"
    given = [str(AGREES), str(REFUSED), "--modes", "paper", "--json", str(rows_file)]
    assert check_modes.main(given) == 0
    good, bad = json.loads(rows_file.read_text())
    assert (good["outcome"], good["coded"]) == ("agrees", [[2, 3]])
    assert 0 < good["worst"] < 1e-4
    assert good["share"] < 0.7
    assert bad["outcome"] == "PlanError"
    printed = capsys.readouterr().out
    assert f"| {AGREES.name} | paper | 2+3 |" in printed
    assert f"| {REFUSED.name} | paper | PlanError | no 2 layers" in printed
    assert printed.endswith("1 agrees, 1 PlanError\n")


@pytest.mark.usefixtures("ort_library")
def test_a_difference_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    run = NodeByNode.run

    def wrong(self: NodeByNode, fed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        got = run(self, fed)
        return got | {self.nodes[0].attention: got[self.nodes[0].attention] * np.float32(1.001)}

    monkeypatch.setattr(NodeByNode, "run", wrong)
    row = check_modes.judge(AGREES / "model.onnx", "exact")
    assert row["outcome"] == "differs"
    assert "layer 0 at past [0, 0]" in row["sentence"]
    monkeypatch.setattr(
        check_modes, "judge_apart", lambda *_: row | {"model": "m", "mode": "exact"}
    )
    assert check_modes.main([str(AGREES), "--modes", "exact"]) == 1
