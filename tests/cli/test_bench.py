import re

import pytest

from focus_core.cli import main

FIELDS = {
    "variant", "config", "backend", "dtype", "device", "length", "phase", "ms", "ms_p10", "ms_p90", "select_ms",
    "baseline", "baseline_ms", "speedup", "kept_pairs", "pair_limit", "peak_mb", "max_error",
}  # fmt: skip
SMALL = ["--lengths", "96,160", "--heads", "3", "--kv-heads", "1", "--head-dim", "16", "--repeats", "2"]
SMALL += ["--device", "cpu"]


def test_one_row_a_variant_length_and_phase(command):
    code, found = command(
        "bench", "--variants", "focus,window", "--set", "focus.groups=4", "--set", "focus.window=16",
        "--set", "window.window=24", "--phase", "both", *SMALL,
    )  # fmt: skip
    assert code == 0
    assert {(r["variant"], r["length"], r["phase"]) for r in found["rows"]} == {
        (v, n, p) for v in ("focus", "window") for n in (96, 160) for p in ("prefill", "decode")
    }
    for row in found["rows"]:
        assert set(row) >= FIELDS
        assert row["baseline"] == "sdpa"
        assert row["max_error"] < 1e-4
        assert 0 < row["kept_pairs"] <= 1
    assert {r["config"]["window"] for r in found["rows"] if r["variant"] == "window"} == {24}
    assert {r["config"]["groups"] for r in found["rows"] if r["variant"] == "focus"} == {4}
    assert found["environment"]["torch"]
    assert len(found["source_hash"]) == 64


def test_activations_of_a_model(command, tiny_folder, text_file):
    code, found = command(
        "bench", "--variants", "window", "--set", "window.window=8", "--activations", tiny_folder, "--text", text_file,
        "--lengths", "64", "--repeats", "1", "--device", "cpu",
    )  # fmt: skip
    assert code == 0
    assert (found["rows"][0]["heads"], found["rows"][0]["head_dim"]) == (9, 16)


def squeezed(table: str) -> list[str]:
    """The lines of a table with two spaces between cells."""
    return [re.sub(" {2,}", "  ", line.strip()) for line in table.splitlines()]


def test_a_table_for_a_person(capsys):
    assert main(["bench", "--variants", "window", *SMALL]) == 0
    said = capsys.readouterr().out
    assert "baseline_ms" in said
    cells = dict(zip(*(line.split("  ") for line in squeezed(said)[0::2][:2]), strict=True))
    assert all(re.fullmatch(r"[\d.]+x", cells[name]) for name in ("speedup", "speedup_p10", "pair_limit"))
    assert re.fullmatch(r"[\d.]+ %", cells["kept_pairs"])
    assert float(cells["kept_pairs"].removesuffix(" %")) > 1
    assert "Measured on" in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--variants", "windows"], "There is no variant 'windows'"),
        (["--variants", ","], "names none"),
        (["--set", "window=3"], "names no variant"),
        (["--set", "random.window=3"], "not timed"),
        (["--set", "window.width=3"], "no setting 'width'"),
        (["--lengths", "a,b"], "--lengths is 'a,b'"),
        (["--lengths", "0"], "--lengths is '0'"),
        (["--repeats", "0"], "--repeats is 0"),
        (["--heads", "5", "--kv-heads", "2"], "5 query heads cannot share 2"),
        (["--device", "tpu"], "tpu"),
        (["--device", "cuda:99"], "cuda:99"),
        (["--backend", "magic"], "magic"),
        (["--device", "cpu", "--backend", "triton"], "needs a GPU"),
        (["--device", "cpu", "--backend", "flash"], "needs a GPU"),
        (["--activations", "/no/such/model"], "/no/such/model"),
        (["--text", "no such text"], "no such text"),
    ],
)
def test_wrong_arguments_get_one_line(refused, arguments, sentence):
    assert sentence in refused("bench", *SMALL, *arguments)
