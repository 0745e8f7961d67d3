import itertools

import numpy as np
import pytest

from analysis import palette

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
SIMULATED = {
    "none": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def linear(color: str) -> np.ndarray:
    c = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


TO_LMS = np.array([[0.41222, 0.53633, 0.05145], [0.2119, 0.6807, 0.1074], [0.0883, 0.28172, 0.62998]])
TO_LAB = np.array([[0.21045, 0.79362, -0.00407], [1.978, -2.42859, 0.45059], [0.0259, 0.78277, -0.80868]])


def oklab(rgb: np.ndarray) -> np.ndarray:
    return TO_LAB @ np.cbrt(TO_LMS @ np.clip(rgb, 0, 1))


@pytest.mark.parametrize("sight", SIMULATED)
def test_groups_stay_apart_for_all_readers(sight):
    seen = [oklab(np.asarray(SIMULATED[sight]) @ linear(c)) for c in palette.GROUPS]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 0.065


@pytest.mark.parametrize("sight", SIMULATED)
def test_kept_lost_and_dropped_stay_apart_for_all_readers(sight):
    seen = [oklab(np.asarray(SIMULATED[sight]) @ linear(palette.PAIRS[k])) for k in ("kept", "lost", "dropped")]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 0.1


def test_colours_show_on_light_and_on_dark():
    for color in palette.GROUPS:
        assert 0.45 < oklab(linear(color))[0] < 0.9


def test_labels_and_sets():
    assert [palette.group_label(g) for g in (0, 15, 16, 63)] == ["A", "P", "A2", "P4"]
    assert palette.group_color(17) == palette.GROUPS[1]
    assert palette.groups_of(-(1 << 63) | 5) == [0, 2, 63]
