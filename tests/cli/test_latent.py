"""A latent from the command line: factorised or trained, then served from a cache that holds nothing else."""

import pytest

SMALL = ["--context", 48, "--batch", 1]


def test_factors_are_made_and_served(command, refused, tmp_path, tiny_folder, text_file):
    arguments, out = ["--model", tiny_folder, "--text", text_file], tmp_path / "factors"
    code, found = command("train", *arguments, *SMALL, "--kind", "factors", "--rank", 20, "--out", out)
    assert (code, found["kind"]) == (0, "latent")
    # Half of the 16 numbers that rotate, as nothing else was asked for.
    assert found["serve"] == {"rank": 20, "rotary": 8}
    given = ["eval", *arguments, "--variant", "mla", "--context", 48, "--windows", 2]
    code, found = command(*given, "--adapter", out)
    assert code == 0
    assert found["served"]
    assert found["kept_pairs"] == 1.0
    assert found["leak"] < 1e-4
    assert max(found["parity"]["chunked"], found["parity"]["decode"]) < 1e-3
    assert found["ppl"] != pytest.approx(found["dense_ppl"], rel=1e-3)
    assert "no latent attention of its own" in refused(*given)


def test_factors_are_healed(command, tmp_path, tiny_folder, text_file):
    out = tmp_path / "healed"
    run = ["--kind", "latent", "--rank", 12, "--rotary", 4, "--steps", 2, "--validation-windows", 1]
    code, found = command("train", "--model", tiny_folder, "--text", text_file, *SMALL, *run, "--out", out)
    assert (code, found["kind"], found["serve"]) == (0, "latent", {"rank": 12, "rotary": 4})
    assert found["record"]["settings"]["weighting"] == "activations"
    assert found["record"]["trained_parameters"] > 0
