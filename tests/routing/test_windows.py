"""Windows that something is fitted on stand evenly in the text, whole and in order."""

import pytest
import torch

from focus_core.errors import InvalidInput
from focus_core.routing.windows import spread_windows


def test_windows_are_whole_and_reach_from_the_first_to_the_last():
    found = spread_windows(list(range(47)), 5, 3)
    assert found.tolist() == [list(range(5 * w, 5 * w + 5)) for w in (0, 4, 8)]
    assert torch.equal(spread_windows(torch.arange(47), 5, 100).flatten(), torch.arange(45))


def test_a_text_shorter_than_a_window_is_refused_with_both_numbers():
    with pytest.raises(InvalidInput, match="The text has 4 tokens and a window takes 5"):
        spread_windows([1, 2, 3, 4], 5, 1)
