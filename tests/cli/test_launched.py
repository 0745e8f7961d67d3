"""What a launcher set in the environment wrongly is told in one line, whatever the command."""

import pytest
import torch

from focus_core import launched
from focus_core.cli import main
from focus_core.errors import InvalidInput
from focus_core.processes import Processes

NAMES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
WRONG = [
    ({"WORLD_SIZE": "abc"}, "WORLD_SIZE is 'abc', which is no number from 0"),
    ({"WORLD_SIZE": "-2"}, "WORLD_SIZE is '-2'"),
    ({"WORLD_SIZE": "2", "RANK": "x"}, "RANK is 'x'"),
    ({"WORLD_SIZE": "2", "RANK": ""}, "WORLD_SIZE is 2, and RANK is not set"),
    ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK is 2, and WORLD_SIZE is 2"),
]


@pytest.fixture
def environment(monkeypatch):
    def change(given):
        for name in NAMES:
            monkeypatch.delenv(name, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)

    return change


@pytest.mark.parametrize(("given", "said"), WRONG)
def test_a_wrong_environment_is_one_line(given, said, environment, capsys):
    environment(given)
    for command in (["train", "--out", "never-made"], ["variants"]):
        assert main(command) == 2
        told = capsys.readouterr()
        assert said in told.err
        assert "accelerate launch" in told.err or "counts from 0" in told.err
        assert len(told.err.splitlines()) == 1
        assert not told.out


def test_a_run_from_python_is_told_the_same(environment):
    environment({"WORLD_SIZE": "many"})
    with pytest.raises(InvalidInput, match="WORLD_SIZE is 'many'"):
        Processes(torch.device("cpu"))
    environment({"LOCAL_RANK": "0x1"})
    with pytest.raises(InvalidInput, match="LOCAL_RANK is '0x1'"):
        Processes(torch.device("cpu"))


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, (0, 1)),
        ({"WORLD_SIZE": "", "RANK": ""}, (0, 1)),
        ({"WORLD_SIZE": "1", "RANK": "0"}, (0, 1)),
        ({"WORLD_SIZE": "4", "RANK": "3"}, (3, 4)),
    ],
)
def test_a_right_one_is_read(given, found, environment):
    environment(given)
    assert launched.processes() == found
