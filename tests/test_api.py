"""What ``from focus_core import ...`` gives."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

import focus_core
from focus_core.errors import InvalidInput
from tests.tiny import tiny_model


def test_every_name_that_is_promised_is_there_and_described():
    for name in focus_core.__all__:
        assert getattr(focus_core, name) is not None
        assert name.startswith("_") or f"``{name}``" in focus_core.__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = focus_core.nothing


def test_importing_it_and_reading_a_trace_class_loads_no_torch():
    code = (
        "import sys; from focus_core import Trace, load_text, make, VARIANTS; "
        "make('window', window=8); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "False", done.stderr


def test_settings_come_from_the_adapter_and_then_from_the_caller():
    adapter = SimpleNamespace(serve={"window": 16, "sinks": 2})
    variant = focus_core.make("focus", adapter, window=8)
    assert (variant.window, variant.sinks) == (8, 2)


def test_an_adapter_that_is_not_there_is_said():
    with pytest.raises(InvalidInput, match="There is no adapter 'none-such'"):
        focus_core.load_adapter("none-such", tiny_model("llama"))


def test_the_model_is_as_it_was_after_the_context():
    import torch

    model = tiny_model("llama")
    ids = torch.arange(40)[None]
    before = model(ids).logits
    with focus_core.retrofitted(model, focus_core.make("window", window=4, sinks=0)):
        assert not torch.equal(model(ids).logits, before)
    assert torch.equal(model(ids).logits, before)
