import dataclasses
import json
import os
import runpy
import signal
import subprocess
import sys
import time

import pytest

from focus_core.cli import commands, main
from focus_core.cli.output import adapter_folder, rows, show, stop_request, write_json
from focus_core.errors import InvalidInput
from focus_core.training.settings import TrainSettings
from focus_core.variants import VARIANTS
from tests.cli.conftest import TEXT

ALL = {"models", "variants", "eval", "bench", "train", "trace"}


def python(code, *arguments, **options):
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, **options)


def test_every_command_is_there():
    assert set(commands()) >= ALL


@pytest.mark.parametrize("command", sorted({*ALL, ""}))
def test_help_is_fast_and_needs_no_torch(command):
    code = (
        "import sys, time; began = time.perf_counter()\n"
        "from focus_core.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "loaded = {'torch', 'transformers', 'sklearn'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
        "assert time.perf_counter() - began < 3"
    )
    done = python(code, *filter(None, [command]), "--help")
    assert done.returncode == 0, done.stderr
    assert "usage: python -m focus_core" in done.stdout


def test_variants_needs_no_torch_and_lists_every_setting(command):
    code, found = command("variants")
    assert code == 0
    assert {row["name"] for row in found} == set(VARIANTS)
    for row in found:
        assert row["summary"]
        assert all(field["help"] and "default" in field for field in row["config"].values())
    done = python(
        "import sys; from focus_core.cli import main; assert main(['variants']) == 0; assert 'torch' not in sys.modules"
    )
    assert done.returncode == 0, done.stderr
    assert "window" in done.stdout


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            RuntimeError("DefaultCPUAllocator: tried to allocate 230399997696 bytes."),
            "230 GB more could not be had",
        ),
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB."), "20.00 GiB more could not be had"),
        (MemoryError(), "Memory ran out while this ran. Ask for fewer tokens"),
        (ValueError("I/O error: No space left on device (os error 28)"), "The disk is full. Free some space"),
    ],
)
def test_memory_and_disks_that_run_out_are_one_line(monkeypatch, capsys, error, said):
    def run(args):
        raise error

    monkeypatch.setattr(commands()["variants"], "run", run)
    assert main(["variants"]) == 1
    found = capsys.readouterr().err
    assert said in found
    assert found.count("\n") == 1


def test_any_other_fault_is_not_taken_for_it(monkeypatch):
    def run(args):
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(commands()["variants"], "run", run)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        main(["variants"])


def test_an_adapter_that_a_variant_can_do_without_is_called_optional(capsys):
    assert main(["variants"]) == 0
    said = {line.split(":")[0]: line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")}
    for name, variant in VARIANTS.items():
        needs = f"Needs an adapter of kind {variant.adapter_kind}." in said[name]
        assert needs == (variant.adapter_kind is not None and not variant.adapter_optional), name
        assert (
            f"Takes an adapter of kind {variant.adapter_kind} (optional)." in said[name]
        ) == variant.adapter_optional
    assert VARIANTS["sfa"].adapter_optional


def test_train_explains_every_setting(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert all(len(field.metadata["help"]) > 10 for field in dataclasses.fields(TrainSettings))
    assert "--groups N router: number of groups, K (default 16)" in said
    assert "a killed run loses at most these (default 100)" in said
    assert "TrainSettings" not in said


def test_no_command_and_a_wrong_one_are_refused(refused):
    assert "COMMAND" in refused()
    assert "evil" in refused("evil")


def test_models_lists_the_bundled_model_and_one_by_name(command, tiny_folder):
    code, found = command("models")
    assert code == 0
    first = found[0]
    assert (first["name"], first["bundled"]) == ("smollm2", True)
    assert set(first) >= {"name", "family", "layers", "heads", "kv_heads", "head_dim", "context", "bundled", "variants"}
    code, found = command("models", "--model", tiny_folder)
    assert code == 0
    shape = {k: found[0][k] for k in ("family", "layers", "heads", "kv_heads", "head_dim", "context", "bundled")}
    assert shape == {
        "family": "llama", "layers": 2, "heads": 9, "kv_heads": 3, "head_dim": 16, "context": 1024, "bundled": False,
    }  # fmt: skip
    assert set(found[0]["variants"]) == set(VARIANTS)
    assert found[0]["variants"]["dense"] == {"ok": True, "reason": ""}


@pytest.mark.model
def test_the_packaged_model_has_its_shape_before_it_is_converted(command):
    code, found = command("models")
    assert code == 0
    shape = [found[0][k] for k in ("family", "layers", "heads", "kv_heads", "head_dim")]
    assert shape == ["llama", 30, 9, 3, 64]
    assert found[0]["variants"]["focus"]["ok"] is True


def test_models_refuses_a_model_that_is_not_there(refused):
    assert "/no/such" in refused("models", "--model", "/no/such")


def test_a_trace_opens_without_the_model(command, tmp_path, tiny_folder, text_file):
    from focus_core.trace import Trace

    out = tmp_path / "t.npz"
    code, found = command(
        "trace", "--model", tiny_folder, "--variant", "window", "--set", "window=8", "--text", text_file,
        "--limit", 40, "--layers", "1", "--out", out,
    )  # fmt: skip
    assert code == 0
    trace = Trace.load(out)
    assert found["tokens"] == len(trace) == 40
    assert trace.attention_layers == [1]
    assert found["provenance"] == trace.provenance
    assert found["arrays"]["nll"] == [39]


def test_a_trace_with_groups_edited_by_hand(command, refused, tmp_path, tiny_folder, text_file):
    from focus_core.trace import Trace

    out = tmp_path / "t.npz"
    given = ["trace", "--model", tiny_folder, "--variant", "random", "--text", text_file, "--limit", 40, "--out", out]
    edits = [{"layer": 1, "router": 0, "token": 7, "to": 3}, {"layer": 0, "router": 0, "merge": [2, 5]}]
    code, found = command(*given, "--edits", json.dumps(edits))
    assert code == 0
    assert found["provenance"]["edits"] == edits
    trace = Trace.load(out)
    assert trace.arrays["key_bits"][1, 0, 7] == 8
    assert not (trace.arrays["key_bits"][0] & 4).any()
    assert "no token 40. It can be 0 to 39" in refused(*given, "--edits", json.dumps([{**edits[0], "token": 40}]))
    assert "--edits is not JSON" in refused(*given, "--edits", "token 7 to 3")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--layers", "one"], "--layers is 'one'"),
        (["--layers", "7"], "no layer 7"),
        (["--limit", "1"], "--limit is 1"),
        (["--out", "/no/such/t.npz"], "no folder /no/such"),
    ],
)
def test_wrong_trace_arguments_get_one_line(refused, tmp_path, tiny_folder, text_file, arguments, sentence):
    given = ["--model", tiny_folder, "--variant", "dense", "--text", text_file, "--out", tmp_path / "t.npz"]
    assert sentence in refused("trace", *given, *arguments)


TRAIN = ["--steps", "3", "--context", "48", "--batch", "1", "--groups", "4", "--dim", "4", "--query-topk", "1"]
TRAIN += ["--window", "8", "--sinks", "1", "--warmup", "1"]


def test_train_writes_an_adapter_that_eval_serves(command, tmp_path, tiny_folder, text_file):
    arguments = ["--model", tiny_folder, "--text", text_file, "--device", "cpu"]
    out = tmp_path / "adapter"
    code, found = command("train", *arguments, *TRAIN, "--validate-every", 3, "--out", out)
    assert code == 0
    assert found["kind"] == "router"
    assert found["serve"]["groups"] == 4
    assert found["record"]["step"] == 3
    assert found["record"]["served_validation_ppl"] > 1
    code, found = command("eval", *arguments, "--adapter", out, "--context", 48, "--windows", 2, "--no-probes")
    assert code == 0
    assert found["config"]["window"] == 8


def test_kmeans_is_fitted_and_served(command, tmp_path, tiny_folder, text_file):
    arguments = ["--model", tiny_folder, "--text", text_file]
    code, found = command("train", *arguments, *TRAIN, "--kind", "kmeans", "--out", tmp_path / "k")
    assert code == 0
    assert found["kind"] == "kmeans"
    code, found = command(
        "eval", *arguments, "--variant", "kmeans", "--adapter", tmp_path / "k", "--context", 48, "--windows", 2
    )
    assert code == 0
    assert found["config"]["groups"] == 4
    assert found["leak"] < 1e-4


def test_routing_is_fitted_and_served(command, tmp_path, tiny_folder, text_file):
    arguments = ["--model", tiny_folder, "--text", text_file]
    code, found = command("train", *arguments, *TRAIN, "--kind", "routing", "--out", tmp_path / "r")
    assert code == 0
    assert found["kind"] == "routing"
    given = ["--variant", "routing", "--adapter", tmp_path / "r", "--context", 48, "--windows", 2]
    code, found = command("eval", *arguments, *given)
    assert code == 0
    assert found["served"]
    assert 0 < found["kept_pairs"] < 1
    assert found["leak"] < 1e-4
    code, found = command("eval", *arguments, *given, "--set", "form=published")
    assert code == 0
    assert not found["served"]
    assert found["leak"] > 1e-2


def test_lora_is_trained_and_goes_with_dense_and_what_it_was_trained_through(
    command, refused, tmp_path, tiny_folder, text_file
):
    arguments, out = ["--model", tiny_folder, "--text", text_file], tmp_path / "lora"
    lora = ["--kind", "lora", "--rank", 2, "--through", "window window=5", "--validate-every", 3, "--out", out]
    code, found = command("train", *arguments, *TRAIN, *lora)
    assert code == 0
    assert found["kind"] == "lora"
    assert found["record"]["settings"]["learning_rate"] == 5e-4
    parameters = found["record"]["trained_parameters"]
    assert parameters == 2 * 2 * (144 + 144 + 144 + 48)
    given = ["--adapter", out, "--context", 48, "--windows", 2]
    code, found = command("eval", *arguments, *given, "--variant", "dense")
    assert code == 0
    assert found["ppl"] != found["dense_ppl"]
    assert found["adapter_parameters"] == parameters
    assert found["leak"] < 1e-4
    assert max(found["parity"]["chunked"], found["parity"]["decode"]) < 1e-4
    code, found = command("eval", *arguments, *given, "--variant", "window")
    assert (code, found["config"]) == (0, {"window": 5, "sinks": 1})
    code, found = command("eval", *arguments, *given, "--variant", "longformer", "--no-probes")
    assert (code, found["config"]["window"]) == (0, 256)
    said = refused("eval", *arguments, *given, "--variant", "kmeans")
    assert "needs an adapter of kind kmeans" in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--groups", "0"], "groups is 0"),
        (["--form", "circular"], "circular"),
        (["--query-topk", "9"], "9 of 4 groups"),
        (["--context", "5000"], "one held back take 10,000"),
    ],
)
def test_wrong_train_arguments_get_one_line(refused, tmp_path, tiny_folder, text_file, arguments, sentence):
    given = ["--model", tiny_folder, "--text", text_file, "--out", tmp_path / "a"]
    assert sentence in refused("train", *given, *TRAIN, *arguments)


def test_ctrl_c_leaves_a_checkpoint_and_130(tmp_path, tiny_folder):
    text = tmp_path / "long.txt"
    text.write_text(TEXT * 4, encoding="utf-8")
    out = tmp_path / "adapter"
    arguments = ["train", "--model", tiny_folder, "--text", str(text), "--out", str(out), *TRAIN, "--steps", "100000"]
    command = [sys.executable, "-m", "focus_core", *arguments, "--validate-every", "1"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        assert "step 1:" in next(line for line in child.stderr if "step 1:" in line)
        os.kill(child.pid, signal.SIGINT)
        rest = child.communicate(timeout=60)[1]
    finally:
        child.kill()
    assert child.returncode == 130
    assert "Traceback" not in rest
    assert "Stopped" in rest
    assert (out / "training_record.json").exists()


def test_the_first_ctrl_c_asks_and_the_second_interrupts():
    before = signal.getsignal(signal.SIGINT)
    with stop_request() as cancel:
        assert not cancel()
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        assert cancel()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is before


def test_an_unexpected_error_is_not_hidden(monkeypatch):
    from focus_core.cli import variants

    def broken(args):
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(variants, "run", broken)
    with pytest.raises(RuntimeError, match="unforeseen"):
        main(["variants"])


def test_json_is_whole_or_not_there(tmp_path, monkeypatch):
    target = tmp_path / "r.json"
    write_json({"a": float("nan"), "b": (1, 2.5), "c": "é"}, str(target))
    assert json.loads(target.read_text(encoding="utf-8")) == {"a": None, "b": [1, 2.5], "c": "é"}
    monkeypatch.setattr(os, "replace", lambda *a: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_json({"a": 2}, str(target))
    assert json.loads(target.read_text(encoding="utf-8"))["a"] is None
    assert os.listdir(tmp_path) == ["r.json"]


def test_json_can_go_to_standard_output(capsys):
    assert main(["variants", "--json", "-"]) == 0
    assert {row["name"] for row in json.loads(capsys.readouterr().out)} == set(VARIANTS)


def test_a_table_lines_up():
    lines = rows(["name", "count"], [["a", 1], ["long name", 12000], ["b", None]]).splitlines()
    assert lines == [
        "name        count",
        "---------  ------",
        "a               1",
        "long name  12,000",
        "b               -",
    ]
    assert [show(x) for x in (True, 0.123456, 123456.0, 7)] == ["yes", "0.1235", "123,456", "7"]


def test_a_file_that_fails_midway_is_a_sentence(monkeypatch, capsys):
    def full(*args):
        raise OSError(28, "No space left on device", "/full/disk")

    monkeypatch.setattr(commands()["variants"], "run", full)
    assert main(["variants"]) == 1
    assert capsys.readouterr().err == "A file could not be read or written: No space left on device /full/disk.\n"


def test_an_adapter_s_folder_is_tried_before_the_work_and_none_is_left_by_it(tmp_path):
    assert adapter_folder(str(tmp_path / "a" / "b")) == tmp_path / "a" / "b"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "kept").mkdir()
    adapter_folder(str(tmp_path / "kept"))
    assert [path.name for path in tmp_path.rglob("*")] == ["kept"]
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InvalidInput, match=r"is a file|cannot be written"):
            adapter_folder(str(path))


def test_an_interrupt_before_the_command_answers_is_one_line(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("focus_core.cli.main", interrupted)
    with pytest.raises(SystemExit, match="130"):
        runpy.run_module("focus_core", run_name="__main__")
    assert capsys.readouterr().err == "Stopped.\n"
