import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    """Tiny tensors gain nothing from threads, and lose much when the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
