"""Training's steps: what they gave before they could be captured, from tables as uncaptured, several runs at once."""

import dataclasses
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from focus_core.errors import Cancelled
from focus_core.vision import training
from focus_core.vision.augment import smoothed_loss
from focus_core.vision.config import ViTConfig
from focus_core.vision.graphed_step import WARM, Drawn, GraphedSteps
from focus_core.vision.training import Images, Recipe, Training, train

SHAPE = ViTConfig(8, patch=2, width=12, depth=2, heads=3)
KARAT = SHAPE.with_attention(kind="karat", grid=2, rank=2)
ROW = KARAT.with_attention(projection="row")
RECIPE = Recipe(epochs=3, batch=10, validation=20, warmup=1, seed=3)
BEFORE = {
    "softmax": [2.6615, 2.6745, 2.6336, 2.3357, 2.3795, 2.4079, 2.4032, 2.3775, 2.2865, 2.3328, 2.3861, 2.2756],
    "karat": [2.2117, 2.3204, 2.4285, 2.4756, 2.7364, 2.4296, 2.2178, 2.31, 2.5163, 2.3554, 2.2544, 2.5241],
    "row": [2.2017, 2.3274, 2.5186, 2.6679, 2.5709, 2.3475, 2.3511, 2.2015, 2.3888, 2.3931, 2.2286, 2.3711],
}
"""Losses of the loop that the runs recorded first were made with."""


@pytest.fixture(scope="module")
def images():
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (60, 8, 8), dtype=np.uint8)
    return Images(pixels, np.arange(60) % 10, pixels[:10], np.arange(10))


@pytest.mark.parametrize(("arm", "config"), [("softmax", SHAPE), ("karat", KARAT), ("row", ROW)])
def test_losses_are_those_of_the_loop_that_made_the_first_runs(arm, config, images, tmp_path):
    _, eager = train(config, images, RECIPE, tmp_path / "a")
    np.testing.assert_allclose(eager["loss"]["loss"], BEFORE[arm], atol=2e-3)
    assert eager["step"] == {"captured": False, "why_not": "It was not asked for."}
    _, tables = train(config, images, RECIPE, tmp_path / "b", graph=True)
    np.testing.assert_allclose(tables["loss"]["loss"], eager["loss"]["loss"], atol=2e-4)
    assert tables["step"] == {"captured": False, "why_not": "CUDA graphs need a GPU."}


def test_the_loss_is_torchs():
    torch.manual_seed(0)
    logits, labels = torch.randn(64, 10, requires_grad=True), torch.randint(0, 10, (64,))
    wanted = F.cross_entropy(logits, labels, label_smoothing=0.1)
    got = smoothed_loss(logits, labels, 0.1)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(one, logits)[0] for one in (got, wanted)))


@pytest.mark.parametrize("first", [False, True])
def test_a_checkpoint_goes_on_with_either_step(first, images, tmp_path):
    _, whole = train(KARAT, images, RECIPE, tmp_path / "a")
    asked = iter((False, True))
    with pytest.raises(Cancelled):
        train(KARAT, images, RECIPE, tmp_path / "b", cancel=lambda: next(asked), graph=first)
    _, resumed = train(KARAT, images, RECIPE, tmp_path / "b", graph=not first)
    np.testing.assert_allclose(resumed["loss"]["loss"], whole["loss"]["loss"], atol=2e-4)
    assert len(resumed["epoch_seconds"]) == 3


def test_runs_taken_in_turns_are_the_runs_alone(images, tmp_path):
    recipes = [RECIPE, dataclasses.replace(RECIPE, seed=4)]
    alone = [train(KARAT, images, recipe, tmp_path / str(recipe.seed))[0] for recipe in recipes]
    runs = [Training(KARAT, images, recipe, tmp_path / "x", own_stream=True) for recipe in recipes]
    while not all(run.done for run in runs):
        for run in runs:
            run.begin()
        for run in runs:
            run.end()
    for run, wanted in zip(runs, alone, strict=True):
        for name, value in run.finish()[0].state_dict().items():
            assert torch.equal(value, wanted.state_dict()[name]), name


class _Recorded(GraphedSteps):
    """A capture that is kept as the step itself, or fails."""

    fails = False

    def __init__(self, *given):
        super().__init__(*given)
        self.reason, self.records, self.replays, self.aside = "", 0, 0, 0

    def _aside(self):
        self.aside += 1
        return nullcontext()

    def _record(self):
        self.records += 1
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        return self

    def replay(self):
        self.replays += 1
        self._step()


@pytest.mark.parametrize("fails", [False, True])
def test_first_steps_count_the_capture_does_not_and_a_failed_one_is_told(fails, images, tmp_path, monkeypatch):
    _, eager = train(KARAT, images, RECIPE, tmp_path / "a")
    monkeypatch.setattr(_Recorded, "fails", fails)
    monkeypatch.setattr(training, "GraphedSteps", _Recorded)
    run = Training(KARAT, images, RECIPE, tmp_path / "b", graph=True)
    while not run.done:
        run.begin()
        run.end()
    assert (run.graphed.aside, run.graphed.records) == (WARM, 1)
    assert run.graphed.replays == (0 if fails else 12 - WARM)
    _, document = run.finish()
    assert document["step"]["captured"] is not fails
    told = "The capture failed: operation not permitted when stream is capturing"
    assert document["step"]["why_not"] == (told if fails else "")
    np.testing.assert_allclose(document["loss"]["loss"], eager["loss"]["loss"], atol=2e-4)


def test_every_step_reads_its_own_row_and_rate():
    seen = []
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([weight], lr=1.0)

    def learn(index, moved, mirrored):
        seen.append((index.tolist(), moved.flatten().tolist(), mirrored, float(optimizer.param_groups[0]["lr"])))
        return index.float().mean()

    steps = GraphedSteps(learn, optimizer, torch.device("cpu"))
    for epoch in range(2):
        index = torch.arange(6).view(3, 2) + 10 * epoch
        moved = torch.arange(12).view(3, 2, 2, 1)
        losses = steps(Drawn(index, moved, None), [0.5, 0.25, 0.125])
        torch.testing.assert_close(losses, index.float().mean(1))
    assert [row[0] for row in seen] == [[0, 1], [2, 3], [4, 5], [10, 11], [12, 13], [14, 15]]
    assert [row[1] for row in seen[:3]] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert [row[3] for row in seen] == [0.5, 0.25, 0.125] * 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("config", [SHAPE, KARAT, ROW])
def test_a_captured_run_is_the_uncaptured_one(config, images, tmp_path):
    _, eager = train(config, images, RECIPE, tmp_path / "a", "cuda", graph=False)
    _, graphed = train(config, images, RECIPE, tmp_path / "b", "cuda")
    assert graphed["step"] == {"captured": True, "why_not": ""}
    np.testing.assert_allclose(graphed["loss"]["loss"], eager["loss"]["loss"], atol=0.03)
