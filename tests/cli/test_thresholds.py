"""``thresholds``, and what ``eval`` and ``bench`` make of XAttention."""

import pytest

SET = ("--set", "block=8", "--set", "stride=4")


def test_thresholds_are_fitted_saved_and_served(command, tiny_folder, text_file, tmp_path):
    out = tmp_path / "t"
    code, found = command(
        "thresholds", "--model", tiny_folder, *SET, "--text", text_file, "--context", 64, "--windows", 2,
        "--recall", 0.8, "--out", out, "--device", "cpu",
    )  # fmt: skip
    assert code == 0
    assert (found["kind"], found["serve"]["block"], found["record"]["windows"]) == ("thresholds", 8, 2)
    assert all(share >= 0.8 for share in found["record"]["recall_by_layer"])
    assert [len(layer) for layer in found["thresholds"]] == [9, 9]
    evaluate = ("eval", "--model", tiny_folder, "--variant", "xattention", "--text", text_file, "--context", 64)
    code, fitted = command(*evaluate, "--windows", 2, "--adapter", out, "--device", "cpu")
    assert code == 0
    assert fitted["served"]
    assert fitted["config"]["block"] == 8
    assert fitted["leak"] < 1e-4
    code, plain = command(*evaluate, "--windows", 2, *SET, "--set", "threshold=0.1", "--device", "cpu")
    assert code == 0
    assert plain["kept_pairs"] < fitted["kept_pairs"] < 1


def test_the_published_form_is_not_called_served(command, tiny_folder, text_file):
    code, found = command(
        "eval", "--model", tiny_folder, "--variant", "xattention", *SET, "--set", "voters=own", "--set",
        "threshold=0.3", "--text", text_file, "--context", 64, "--windows", 2, "--device", "cpu",
    )  # fmt: skip
    assert code == 0
    assert not found["served"]
    assert found["leak"] > 1e-3


def test_the_programme_lowers_as_many_as_asked(command, tiny_folder, text_file, tmp_path):
    code, found = command(
        "thresholds", "--model", tiny_folder, *SET, "--text", text_file, "--context", 64, "--windows", 1,
        "--programme", 1, "--out", tmp_path / "p", "--device", "cpu",
    )  # fmt: skip
    assert code == 0
    assert sorted({t for layer in found["thresholds"] for t in layer}) == pytest.approx([0.81, 0.9])
    assert found["record"]["evaluations"] == 3


def test_wrong_arguments_are_refused(tiny_folder, text_file, tmp_path, refused):
    common = ("thresholds", "--model", tiny_folder, "--text", text_file, "--device", "cpu", "--out", tmp_path / "x")
    assert "cannot be read" in refused(*common, "--windows", 0)
    assert "takes 4096" in refused(*common)
    assert "is a file" in refused(*common[:-1], text_file)
    assert "power of two" in refused(*common, "--set", "stride=5")


def test_bench_times_the_choice_apart(command):
    code, found = command(
        "bench", "--variants", "xattention", "--set", "xattention.threshold=0.3", "--lengths", 512, "--heads", 2,
        "--kv-heads", 1, "--repeats", 2, "--device", "cpu",
    )  # fmt: skip
    assert code == 0
    (row,) = found["rows"]
    assert row["select_ms"] > 0
    assert row["max_error"] < 1e-4
    assert row["kept_pairs"] < 1
