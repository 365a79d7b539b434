"""A calibration of some of a model's layers: groups name them by the model's numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from minicache.exporter.calibration.calibration import Calibration
from minicache.runtime.errors import PlanError
from tests.exporter.calibration.test_codec import make_calibration, make_layers


def test_layers_between_need_no_statistics(tmp_path: Path) -> None:
    """Those of sliding-window attention: groups name the others by the model's numbers."""
    plain = make_calibration(*make_layers(rank=12))
    sparse = dataclasses.replace(
        plain, layers=tuple(dataclasses.replace(x, layer=6 * x.layer + 5) for x in plain.layers)
    )
    sparse.save(tmp_path / "sparse")
    for calibration in (sparse, Calibration.load(tmp_path / "sparse")):
        assert [calibration.place(layer) for layer in (5, 11, 17)] == [0, 1, 2]
        calibration.weigh({"key": (1.0, 2.0, 3.0), "value": (3.0, 2.0, 1.0)})
        found = calibration.codec((11, 17), 1, 6.0, 6.0)
        assert found.layers == (11, 17)
        with pytest.raises(PlanError, match=r"different ones of 5, 11, 17 \(the others attend"):
            calibration.codec((0, 5), 1, 6.0, 6.0)
        alignment = calibration.alignment((5, 17))
        assert alignment.layers == (5, 17)
    plain.weigh({"key": (1.0, 2.0, 3.0), "value": (3.0, 2.0, 1.0)})
    expected = plain.codec((1, 2), 1, 6.0, 6.0)
    for name, array in expected.arrays(1).items():
        np.testing.assert_array_equal(array, found.arrays(1)[name], err_msg=name)
    other = plain.alignment((0, 2))
    np.testing.assert_array_equal(alignment.key.maps, other.key.maps)
