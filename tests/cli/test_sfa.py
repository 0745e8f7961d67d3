"""SFA from the command line: with and without maps, fitted or trained, and inside Focus's pairs."""

import pytest

SMALL = ["--context", 48, "--batch", 1, "--window", 4, "--sinks", 1, "--groups", 4, "--dim", 4]


def test_maps_are_fitted_then_serve_codes_and_short_embeddings(command, tmp_path, tiny_folder, text_file):
    arguments, out = ["--model", tiny_folder, "--text", text_file], tmp_path / "maps"
    code, found = command("train", *arguments, *SMALL, "--kind", "feature_maps", "--features", 6, "--out", out)
    assert (code, found["kind"]) == (0, "sfa")
    assert found["serve"] == {"features": 6, "select": "features", "sparse": "both"}
    given = ["--variant", "sfa", "--context", 48, "--windows", 2]
    perplexities = []
    for more in ([], ["--adapter", out], ["--adapter", out, "--set", "select=first"]):
        code, found = command("eval", *arguments, *given, "--set", "features=6", *more)
        assert code == 0
        assert found["served"]
        assert found["kept_pairs"] == 1.0
        assert found["leak"] < 1e-4
        assert max(found["parity"]["chunked"], found["parity"]["decode"]) < 1e-3
        perplexities.append(found["ppl"])
    assert len(set(perplexities)) == 3
    code, found = command("eval", *arguments, *given, "--set", "features=16", "--no-probes")
    assert found["ppl"] == pytest.approx(found["dense_ppl"], rel=1e-5)


def test_maps_are_trained(command, tmp_path, tiny_folder, text_file):
    arguments, out = ["--model", tiny_folder, "--text", text_file], tmp_path / "maps"
    run = ["--kind", "sfa", "--features", 4, "--steps", 2, "--validate-every", 2, "--validation-windows", 1]
    code, found = command("train", *arguments, *SMALL, *run, "--out", out)
    assert (code, found["kind"]) == (0, "sfa")
    assert found["record"]["settings"]["learning_rate"] == 1e-3
    code, found = command("eval", *arguments, "--variant", "sfa", "--adapter", out, "--context", 48, "--windows", 1)
    assert (code, found["config"]["features"]) == (0, 4)


def test_short_embeddings_without_maps_are_refused(refused, tiny_folder, text_file):
    said = refused("eval", "--model", tiny_folder, "--text", text_file, "--variant", "sfa", "--set", "select=first")
    assert "need an adapter's maps" in said


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_bench_times_codes_and_judges_them_by_their_own_scores(command, phase):
    shape = ["--lengths", 64, "--heads", 4, "--kv-heads", 2, "--head-dim", 16, "--repeats", 1, "--device", "cpu"]
    code, found = command("bench", "--variants", "sfa", "--set", "sfa.features=4", *shape, "--phase", phase)
    assert code == 0
    row = next(row for row in found["rows"] if row["variant"] == "sfa")
    assert row["phase"] == phase
    assert row["max_error"] < 1e-5
