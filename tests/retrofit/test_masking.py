"""What is read from a padding mask, and which mask functions are taken for causal."""

import pytest
import torch
from transformers.masking_utils import sliding_window_causal_mask_function

from focus_core.errors import Unsupported
from focus_core.masking import first_key_of, padding_mask


def test_first_keys():
    assert first_key_of(torch.tensor([[0, 0, 1], [1, 1, 1], [0, 1, 0], [0, 0, 0]]), 3).tolist() == [2, 0, 1, 3]
    assert first_key_of(torch.tensor([[1, 1, 0], [1, 1, 1]]), 3) is None
    assert first_key_of(None, 3) is None


@pytest.mark.parametrize("offset", [0, 3])
def test_a_window_must_be_the_one_it_is_said_to_be(offset):
    given = {"batch_size": 2, "q_length": 6, "kv_length": 6 + offset, "q_offset": offset}
    window = sliding_window_causal_mask_function(3)
    assert padding_mask(**given, mask_function=window, local_size=3) is None
    for size in (2, 4, None):
        with pytest.raises(Unsupported, match="more than a causal mask"):
            padding_mask(**given, mask_function=window, local_size=size)


def test_the_mask_stays_two_dimensional():
    mask = torch.tensor([[False, True, True], [True, True, True]])
    assert torch.equal(padding_mask(2, 3, 3, attention_mask=mask), mask)
    assert padding_mask(2, 3, 3, attention_mask=torch.ones_like(mask)) is None
