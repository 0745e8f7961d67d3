"""The loop: it learns, resumes to the bit, keeps the best served adapter, and touches nothing but the adapter."""

import json
import math

import pytest
import torch

from focus_core.adapter import load_adapter
from focus_core.errors import Cancelled, InvalidInput
from focus_core.evaluation.likelihood import token_nll
from focus_core.retrofit import retrofit
from focus_core.routing.online import fit_routing
from focus_core.training import trainer
from focus_core.training.checkpoint import FILE
from focus_core.training.trainer import train
from tests.training.small import ids, loaded, settings

KINDS = {
    "directed": {},
    "sinkhorn": {"balance": "sinkhorn"},
    "shared": {"form": "shared", "query_topk": 1, "router_per_kv_head": False},
    "paper": {"form": "paper", "query_topk": 2, "key_topk": 2, "balance": "none"},
    "temperature": {"kind": "temperature"},
    "lora": {"kind": "lora", "rank": 2, "learning_rate": 0.01},
    "sfa": {"kind": "sfa", "features": 4},
    "latent": {"kind": "latent", "rank": 6, "rotary": 4, "learning_rate": 0.01},
}


def run(out, base=None, on_step=None, cancel=None, text=None, **changes):
    base = loaded() if base is None else base
    text = ids() if text is None else text
    return train(base, text, ids(200, seed=1), settings(**changes), out, texts="noise", on_step=on_step, cancel=cancel)


def state(folder) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / FILE)


def same(a, b) -> bool:
    return list(a) == list(b) and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_learns_and_leaves_the_base_alone(kind, tmp_path):
    """On one window, again and again, so that the loss must fall."""
    base, window = loaded(), ids(48)
    before, seen = {k: v.clone() for k, v in base.model.state_dict().items()}, []
    changes = {"steps": 12, "learning_rate": 0.05, "straight_through_from": 1.0, "temperature_end": 0.3, "batch": 1}
    adapter = run(tmp_path, base, seen.append, text=window, **(changes | KINDS[kind]))
    assert same(before, base.model.state_dict())
    assert all(p.grad is None and not p.requires_grad for p in base.model.parameters())
    assert [m["step"] for m in seen] == list(range(1, 13))
    assert seen[-1]["loss"] < seen[0]["loss"] - 1e-4
    fresh = trainer.new_adapter(base.facts, settings(**KINDS[kind]), base.model).state_dict()
    trained = {k.removeprefix("weight."): v for k, v in state(tmp_path).items() if k.startswith("weight.")}
    for name, tensor in trained.items():
        assert torch.equal(tensor, fresh[name]) == (name == "bias" and KINDS[kind].get("balance") == "none"), name
    assert not adapter.training
    assert [("served_ppl" in m) for m in seen] == [(s % 4 == 0) for s in range(1, 13)]
    assert ("gate" in seen[0]) == (KINDS[kind].get("kind", "router") == "router")


@pytest.mark.parametrize("kind", ["directed", "sinkhorn", "temperature", "lora"])
def test_a_run_that_was_stopped_ends_like_one_that_was_not(kind, tmp_path):
    straight = run(tmp_path / "straight", **KINDS[kind])
    seen: list[dict] = []
    with pytest.raises(Cancelled, match="stopped after 4 of 8 steps"):
        run(tmp_path / "cut", on_step=seen.append, cancel=lambda: len(seen) == 4, **KINDS[kind])
    resumed = run(tmp_path / "cut", on_step=seen.append, **KINDS[kind])
    assert [m["step"] for m in seen] == list(range(1, 9))
    assert same(straight.state_dict(), resumed.state_dict())
    # The optimizer's moments too, so that it would also go on alike.
    assert same(state(tmp_path / "straight"), state(tmp_path / "cut"))
    logs = [json.loads((tmp_path / f / trainer.RECORD_FILE).read_text())["log"] for f in ("straight", "cut")]
    assert logs[0] == logs[1]


def test_a_run_that_was_killed_goes_on_from_its_last_checkpoint(tmp_path):
    straight, seen = run(tmp_path / "straight", checkpoint_every=3), []

    def die(metrics):
        seen.append(metrics["step"])
        if metrics["step"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", on_step=die, checkpoint_every=3)
    resumed = run(tmp_path / "cut", on_step=lambda m: seen.append(m["step"]), checkpoint_every=3)
    assert seen == [1, 2, 3, 4, 5, 4, 5, 6, 7, 8]
    assert same(straight.state_dict(), resumed.state_dict())


def test_a_finished_run_is_not_run_again(tmp_path):
    first, seen = run(tmp_path), []
    assert same(first.state_dict(), run(tmp_path, on_step=seen.append).state_dict())
    assert seen == []


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"learning_rate": 0.5}, r"other settings \(learning_rate\)"),
        ({"groups": 8, "query_topk": 3}, r"other settings \(groups, query_topk\)"),
        ({"kind": "temperature"}, r"other settings \(kind\)"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused(changes, says, tmp_path):
    run(tmp_path)
    before = state(tmp_path)
    with pytest.raises(InvalidInput, match=says):
        run(tmp_path, **changes)
    assert same(before, state(tmp_path))


def test_another_model_or_text_in_the_same_folder_is_refused(tmp_path):
    run(tmp_path)
    with pytest.raises(InvalidInput, match="holds a run with another model"):
        run(tmp_path, loaded(seed=1))
    with pytest.raises(InvalidInput, match="holds a run with other texts"):
        run(tmp_path, text=ids(seed=2))


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "no state"])
def test_a_damaged_checkpoint_says_what_to_do(damage, tmp_path):
    from safetensors.torch import save_file

    run(tmp_path)
    path = tmp_path / FILE
    if damage == "no state":
        save_file(state(tmp_path), path)
    else:
        path.write_bytes({"cut": path.read_bytes()[:-50], "text": b"checkpoint", "empty": b""}[damage])
    with pytest.raises(InvalidInput, match=r"(?s)cannot be read .*Delete it to start again"):
        run(tmp_path)


def test_a_checkpoint_without_its_tensors_says_what_to_do(tmp_path):
    from safetensors import safe_open
    from safetensors.torch import save_file

    run(tmp_path)
    with safe_open(tmp_path / FILE, "pt") as file:
        about = file.metadata()
    save_file({k: v for k, v in state(tmp_path).items() if k != "weight.bias"}, tmp_path / FILE, metadata=about)
    with pytest.raises(InvalidInput, match=r"(?s)cannot be read .*Delete it to start again"):
        run(tmp_path)


def test_the_best_served_adapter_is_kept_and_not_the_last(tmp_path, monkeypatch):
    perplexities, kept = iter([9.0, 5.0, 7.0, 8.0]), []

    def served(self):
        kept.append({k: v.clone() for k, v in self.adapter.state_dict().items()})
        return {"served_ppl": next(perplexities), "kept_pairs": 0.5}

    monkeypatch.setattr(trainer.Validator, "served", served)
    adapter = run(tmp_path, validate_every=2)
    assert len(kept) == 4
    assert same(adapter.state_dict(), kept[1])
    assert not same(adapter.state_dict(), kept[3])
    assert (adapter.record["step"], adapter.record["served_validation_ppl"]) == (4, 5.0)
    record = json.loads((tmp_path / trainer.RECORD_FILE).read_text())
    assert (record["best_step"], record["best_ppl"], record["step"]) == (4, 5.0, 8)


def test_a_resumed_run_remembers_the_best_adapter(tmp_path, monkeypatch):
    perplexities, seen = iter([5.0, 7.0]), []
    monkeypatch.setattr(trainer.Validator, "served", lambda self: {"served_ppl": next(perplexities), "kept_pairs": 0.5})
    with pytest.raises(Cancelled):
        run(tmp_path, on_step=seen.append, cancel=lambda: len(seen) == 4)
    best = load_adapter(tmp_path)
    assert run(tmp_path, on_step=seen.append).record["step"] == 4
    assert same(best.state_dict(), load_adapter(tmp_path).state_dict())
    assert [m["served_ppl"] for m in seen if "served_ppl" in m] == [5.0, 7.0]


def test_what_is_validated_is_the_served_function(tmp_path):
    base, seen = loaded(), []
    adapter = run(tmp_path, base, seen.append, validate_every=8)
    windows = ids(200, seed=1)[:96].view(2, 48)
    variant = settings().variant_at(None)
    assert adapter.serve == {"groups": 4, "query_topk": 2, "key_topk": 1, "window": 4, "sinks": 1}
    with torch.no_grad(), retrofit(base.model, variant, adapter=load_adapter(tmp_path, base.model)):
        served = token_nll(base.model, windows).mean().exp().item()
    assert seen[-1]["served_ppl"] == pytest.approx(served, rel=1e-5)
    with torch.no_grad():
        dense = token_nll(base.model, windows).mean().exp().item()
    assert adapter.record["dense_validation_ppl"] == pytest.approx(dense, rel=1e-5)
    assert abs(served - dense) > 0.1
    assert adapter.record["texts"] == "noise"
    assert 0.3 < seen[-1]["kept_pairs"] < 0.95


@pytest.mark.parametrize("balance", ["bias", "none"])
def test_accumulating_twice_is_a_batch_twice_as_large(balance, tmp_path, monkeypatch):
    """The same windows in two forwards or in one: gradients, loads and with them the bias agree."""
    text = ids()

    def draw(_, chosen, step, part):
        rows = torch.arange(4) if chosen.batch == 4 else torch.arange(2) + 2 * part
        return torch.stack([text[7 * r + 3 * step :][:48] for r in rows.tolist()])

    monkeypatch.setattr(trainer, "draw_windows", draw)
    runs = {}
    for name, changes in (("twice", {"batch": 2, "accumulate": 2}), ("large", {"batch": 4})):
        seen: list[dict] = []
        run(tmp_path / name, on_step=seen.append, steps=3, balance=balance, **changes)
        runs[name] = state(tmp_path / name), seen
    for key, tensor in runs["twice"][0].items():
        torch.testing.assert_close(tensor, runs["large"][0][key], rtol=1e-3, atol=2e-5)
    for a, b in zip(runs["twice"][1], runs["large"][1], strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
        assert a["largest_group"] == pytest.approx(b["largest_group"], rel=1e-6)
    moved = runs["twice"][0]["weight.bias"].abs().max() > 0
    assert moved == (balance == "bias")


def test_windows_depend_on_step_and_part_alone():
    text, chosen = ids(1000), settings(batch=3)
    first = trainer.draw_windows(text, chosen, 5, 0)
    assert first.shape == (3, 48)
    assert torch.equal(first, trainer.draw_windows(text, chosen, 5, 0))
    for other in ((6, 0), (5, 1)):
        assert not torch.equal(first, trainer.draw_windows(text, chosen, *other))
    starts = [(text.unfold(0, 48, 1) == row).all(1).nonzero().item() for row in first]
    assert len(set(starts)) == 3
    # The last window can be drawn: 2 starts, 1 - 2^-40 to see both in 40 draws.
    edge = torch.cat([trainer.draw_windows(text[:49], chosen, s, 0) for s in range(40)])
    assert {row[0].item() for row in edge} == {text[0].item(), text[1].item()}


@pytest.mark.parametrize("which", ["training", "validation"])
def test_a_text_shorter_than_a_window_is_refused(which, tmp_path):
    texts = {"training": ids(100), "validation": ids(100)} | {which: ids(47)}
    with pytest.raises(InvalidInput, match=f"The {which} text has 47 tokens and a window takes 48"):
        train(loaded(), texts["training"], texts["validation"], settings(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path):
    base = loaded()
    with torch.no_grad():
        base.model.lm_head.weight.fill_(math.inf)
    with pytest.raises(InvalidInput, match=r"The loss is (nan|inf) at step 0.*learning rate"):
        run(tmp_path, base, validate_every=100)


def test_progress_is_told_and_no_file_is_a_pickle(tmp_path):
    seen = []
    chosen, told = settings(steps=2, validate_every=1), lambda f, text: seen.append((f, text))
    train(loaded(), ids(), ids(200, seed=1), chosen, tmp_path, progress=told)
    assert [f for f, _ in seen] == [0.5, 1.0]
    assert seen[1][1].startswith("Step 2 of 2, loss ")
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {"focus_config.json", "focus_adapter.safetensors", "checkpoint.safetensors", trainer.RECORD_FILE}


def test_lora_is_trained_through_the_variant_that_it_serves(tmp_path):
    seen: list[dict] = []
    changes = KINDS["lora"] | {"through": "performer features=16 seed=2"}
    adapter = run(tmp_path, on_step=seen.append, **changes)
    assert adapter.config.through == "performer"
    assert adapter.serve == {"features": 16, "seed": 2}
    assert adapter.record["trained_parameters"] == sum(p.numel() for p in adapter.parameters())
    assert adapter.record["tokens"] == adapter.record["step"] * 2 * 48
    other = run(tmp_path / "dense", on_step=seen.append, **KINDS["lora"])
    assert seen[0]["loss"] != seen[8]["loss"]
    assert other.config.through == "dense"
    near = settings(**KINDS["lora"], through="longformer sinks=3").variant_at(None).to_dict()
    assert near == {"window": 4, "sinks": 3}


def test_lora_is_trained_through_a_variant_that_reads_an_adapter(tmp_path):
    """The clusters stay as they were fitted, lie in the new adapter, and are not counted as trained."""
    model = loaded()
    clusters = fit_routing(model.model, ids()[:96].view(2, 48), groups=4)
    clusters.serve = {"groups": 4, "window": 5, "sinks": 0}
    clusters.save_pretrained(tmp_path / "clusters", model.model)
    changes = KINDS["lora"] | {"through": "routing sinks=2", "through_adapter": str(tmp_path / "clusters")}
    adapter = train(model, ids(), ids(200, seed=1), settings(**changes), tmp_path / "lora")
    assert (adapter.kind, adapter.config.through) == ("lora", "routing")
    assert (adapter.serve["groups"], adapter.serve["window"], adapter.serve["sinks"]) == (4, 5, 2)
    assert all(torch.equal(x, adapter.reads.state_dict()[name]) for name, x in clusters.state_dict().items())
    trained = [p for name, p in adapter.named_parameters() if name.startswith("base_model")]
    assert adapter.record["trained_parameters"] == sum(p.numel() for p in trained)
    assert any(p.abs().max() > 0 for name, p in adapter.named_parameters() if "lora_B" in name)
    with pytest.raises(InvalidInput, match="is an adapter of kind routing; window reads none"):
        settings(**(changes | {"through": "window"}))
