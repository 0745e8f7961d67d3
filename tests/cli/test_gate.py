"""``gate``, and ``eval`` and ``bench`` of Slim attention."""

import pytest

from tests.tiny import save_tiny


@pytest.fixture(scope="module")
def gpt2_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    save_tiny(folder, "gpt2", layers=2)
    return folder


def test_the_gate_is_measured_saved_and_served(command, gpt2_folder, text_file, tmp_path):
    out = tmp_path / "forms"
    given = ("gate", "--model", gpt2_folder, "--text", text_file, "--context", 64, "--device", "cpu")
    code, found = command(*given, "--serve", "bfloat16", "--out", out)
    assert code == 0
    assert (found["tokens"], found["serve"], len(found["layers"])) == (64, "bfloat16", 2)
    assert found["forms"] == [layer["forms"]["bfloat16"] for layer in found["layers"]]
    assert set(found["forms"]) <= {"k", "x"}
    evaluate = ("eval", "--model", gpt2_folder, "--variant", "slim", "--text", text_file, "--context", 64)
    code, served = command(*evaluate, "--windows", 2, "--adapter", out, "--device", "cpu")
    assert code == 0
    assert served["served"]
    assert served["kept_pairs"] == 1
    assert served["ppl"] == pytest.approx(served["dense_ppl"], rel=1e-4)
    code, rebuilt = command(*evaluate, "--windows", 2, "--set", "prompt=rebuilt", "--dtype", "bfloat16")
    assert code == 0
    assert rebuilt["ppl"] != rebuilt["dense_ppl"]


def test_a_person_reads_a_line_a_layer(capsys, gpt2_folder, text_file):
    from focus_core.cli import main

    given = ["gate", "--model", gpt2_folder, "--text", text_file, "--context", 32, "--device", "cpu"]
    assert main(list(map(str, given))) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["layer", "cond", "W_K"]
    assert [line.split()[0] for line in lines[2:]] == ["0", "1"]
    assert all(line.split()[-1] in ("k", "x") for line in lines[2:])


def test_wrong_models_and_types_are_refused(tiny_folder, gpt2_folder, text_file, refused):
    given = ("--text", text_file, "--context", 32, "--device", "cpu")
    assert "no key projection has an inverse" in refused("gate", "--model", tiny_folder, *given)
    assert "did not measure int8" in refused("gate", "--model", gpt2_folder, *given, "--serve", "int8")
    assert "is a file" in refused("gate", "--model", gpt2_folder, *given, "--out", text_file)
    assert "--context is -5" in refused("gate", "--model", gpt2_folder, "--text", text_file, "--context", -5)


def test_bench_times_both_orders(command, refused):
    given = ("bench", "--variants", "slim", "--lengths", 256, "--heads", 4, "--phase", "decode", "--repeats", 2)
    for order in ("weights", "values"):
        code, found = command(*given, "--kv-heads", 4, "--device", "cpu", "--set", f"slim.order={order}")
        assert code == 0
        (row,) = found["rows"]
        assert row["max_error"] < 1e-3
        assert row["kept_pairs"] == 1
    assert "4 query heads share 2 key heads (GQA)" in refused(*given, "--kv-heads", 2, "--device", "cpu")
