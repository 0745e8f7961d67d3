import json
from pathlib import Path

import pytest
import torch

from focus_core.cli import main
from focus_core.errors import Cancelled
from focus_core.evaluation import perplexity
from focus_core.models.loading import load_model
from focus_core.routing.router import Router, RouterConfig

FIELDS = {
    "model", "variant", "config", "served", "ppl", "ppl_se", "nll", "nll_diff", "nll_se", "tokens", "kept_pairs",
    "dense_ppl", "leak", "flips", "parity", "context", "windows", "seconds", "device", "dtype", "text", "environment",
    "per_window", "buckets", "dense_by_definition", "notes",
}  # fmt: skip


@pytest.fixture(scope="module")
def adapter(tiny_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter")
    loaded = load_model(tiny_folder)
    router = Router(RouterConfig(2, loaded.facts.hidden_size, groups=4, dim=8, routers=3))
    router.serve = {"groups": 4, "query_topk": 2, "window": 8, "sinks": 2}
    router.save_pretrained(folder, loaded.model)
    return str(folder)


def test_the_document_has_every_field(command, tiny_folder, text_file):
    code, found = command(
        "eval", "--model", tiny_folder, "--variant", "window", "--set", "window=8", "--set", "sinks=1",
        "--text", text_file, "--context", 64, "--windows", 3, "--device", "cpu",
    )  # fmt: skip
    assert code == 0
    assert set(found) >= FIELDS
    assert found["model"] == tiny_folder
    assert found["config"] == {"window": 8, "sinks": 1}
    assert (found["windows"], found["context"], found["tokens"]) == (3, 64, 189)
    assert (found["device"], found["dtype"]) == ("cpu", "float32")
    assert found["leak"] < 1e-4
    assert found["command"].startswith(f"python -m focus_core eval --model {tiny_folder} --variant window --set")


def test_focus_serves_its_adapters_settings_and_set_overrides_them(command, tiny_folder, text_file, adapter):
    arguments = ["eval", "--model", tiny_folder, "--text", text_file, "--context", 64, "--windows", 2]
    code, found = command(*arguments, "--variant", "focus", "--adapter", adapter)
    assert code == 0
    served = {"groups": 4, "query_topk": 2, "key_topk": 1, "window": 8, "sinks": 2}
    assert {k: found["config"][k] for k in served} == served
    assert found["served"] is True
    assert found["leak"] < 1e-4
    assert max(found["parity"]["chunked"], found["parity"]["decode"]) < 1e-4
    code, other = command(*arguments, "--variant", "focus", "--adapter", adapter, "--set", "query_topk=1")
    assert other["config"]["query_topk"] == 1
    assert other["config"]["window"] == 8
    assert other["kept_pairs"] < found["kept_pairs"]


def test_soft_gates_are_not_served(command, tiny_folder, text_file, adapter):
    code, found = command(
        "eval", "--model", tiny_folder, "--text", text_file, "--context", 64, "--windows", 1,
        "--adapter", adapter, "--set", "gate=soft",
    )  # fmt: skip
    assert code == 0
    assert found["served"] is False
    assert found["kept_pairs"] == 1.0
    assert found["parity"] is None


def test_a_table_for_a_person(capsys, tiny_folder, text_file):
    arguments = ["--model", tiny_folder, "--text", text_file, "--context", "64", "--windows", "2", "--no-probes"]
    code = main(["eval", "--variant", "window", "--set", "window=70", *arguments])
    said = capsys.readouterr().out
    assert code == 0
    assert "perplexity" in said
    assert "100.0% of the causal pairs" in said
    assert "dense by definition" in said


def test_an_interrupted_run_keeps_its_windows_and_goes_on(tmp_path, monkeypatch, capsys, tiny_folder, text_file):
    target, measure, calls = tmp_path / "r.json", perplexity._measure, []

    def interrupted(*arguments):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(1)
        return measure(*arguments)

    arguments = ["eval", "--variant", "window", "--set", "window=8", "--model", tiny_folder, "--text", text_file]
    arguments += ["--context", "64", "--windows", "3", "--no-probes", "--json", str(target)]
    monkeypatch.setattr(perplexity, "_measure", interrupted)
    assert main(arguments) == 130
    assert "Stopped" in capsys.readouterr().err
    assert not target.exists()
    assert len(json.loads(Path(f"{target}.partial").read_text())["per_window"]) == 2
    calls.clear()
    assert main(arguments) == 0
    assert len(calls) == 1
    assert not Path(f"{target}.partial").exists()
    assert json.loads(target.read_text())["windows"] == 3


def test_a_broken_partial_file_is_not_taken_up(tmp_path, tiny_folder, text_file):
    target = tmp_path / "r.json"
    Path(f"{target}.partial").write_text("{ no")
    arguments = ["--variant", "dense", "--model", tiny_folder, "--text", text_file, "--context", "64", "--windows", "1"]
    assert main(["eval", *arguments, "--no-probes", "--json", str(target)]) == 0
    assert json.loads(target.read_text())["windows"] == 1


def test_cancelled_is_130(monkeypatch, tiny_folder, text_file):
    def cancelled(*arguments, **options):
        raise Cancelled()

    monkeypatch.setattr(perplexity, "evaluate", cancelled)
    assert main(["eval", "--variant", "dense", "--model", tiny_folder, "--text", text_file]) == 130


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--variant", "window", "--set", "width=3"], "no setting 'width'"),
        (["--variant", "window", "--set", "window"], "Write --set FIELD=VALUE"),
        (["--variant", "window", "--set", "window=many"], "must be int"),
        (["--variant", "window", "--set", "window=0"], "at least 1"),
        (["--variant", "windows"], "There is no variant 'windows'"),
        (["--variant", "window", "--context", "1"], "context is 1"),
        (["--variant", "window", "--context", "5000"], "longer than the 1,024"),
        (["--variant", "window", "--context", "many"], "invalid int value"),
        (["--variant", "window", "--windows", "0"], "windows is 0"),
        (["--variant", "window", "--text", "no such text"], "no such text"),
        (["--variant", "window", "--dtype", "int8"], "int8"),
        (["--variant", "window", "--device", "tpu"], "tpu"),
        (["--variant", "window", "--no-such"], "--no-such"),
        (["--variant", "focus"], "needs a trained adapter of kind router"),
        (["--variant", "focus", "--adapter", "/no/such/folder"], "no adapter at /no/such/folder"),
        (["--variant", "window", "--json", "/no/such/folder/r.json"], "no folder /no/such/folder"),
        (["--variant", "window", "--json", "/proc/r.json"], "/proc/r.json cannot be written"),
        (["--variant", "window", "--json", ""], "cannot be written"),
    ],
)
def test_wrong_arguments_get_one_line(refused, tiny_folder, text_file, arguments, sentence):
    assert sentence in refused("eval", "--model", tiny_folder, "--text", text_file, *arguments)


def test_an_adapter_that_nothing_reads_is_refused(refused, tiny_folder, adapter):
    assert "takes no adapter" in refused("eval", "--model", tiny_folder, "--variant", "window", "--adapter", adapter)
    said = refused("eval", "--model", tiny_folder, "--variant", "kmeans", "--adapter", adapter)
    assert "of kind kmeans" in said
    assert "of kind router" in said


def test_another_models_adapter_is_refused(refused, tmp_path, text_file, adapter):
    from tests.tiny import save_tiny

    save_tiny(tmp_path, "llama", layers=2, seed=1)
    said = refused("eval", "--model", tmp_path, "--text", text_file, "--variant", "focus", "--adapter", adapter)
    assert "another model" in said


def test_a_model_that_is_not_there_is_refused(refused):
    assert "/no/such/model" in refused("eval", "--model", "/no/such/model", "--variant", "dense")


def test_the_probes_can_be_left_out(command, tiny_folder, text_file):
    arguments = ["--model", tiny_folder, "--variant", "dense", "--text", text_file, "--context", 64, "--windows", 1]
    code, found = command("eval", *arguments, "--no-probes", "--dtype", "bfloat16")
    assert code == 0
    assert found["leak"] is found["flips"] is found["parity"] is None
    assert found["dtype"] == "bfloat16"
    assert torch.tensor(found["ppl"]).isfinite()


def test_a_person_reads_of_one_window_that_it_gives_no_standard_error(capsys, tiny_folder, text_file):
    given = ["eval", "--model", tiny_folder, "--variant", "window", "--text", text_file, "--context", "64"]
    assert main([*given, "--windows", "1", "--no-probes", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "one window gives no standard error" in said
    assert "difference in perplexity  " in said
