"""Whisper's decoding timed with two caches: the same function, and as many bytes fewer as there are layers, twice."""

from data.build.cross_speed import STEPS, steps_of, whisper
from focus_core.claims import claim, document


def test_a_step_gives_the_same_logits_from_fewer_bytes():
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_layers": 3}
    model = whisper(d_model=32, vocab_size=60, max_source_positions=20, **heads, **ends)
    dense, small = steps_of(model, 2, steps=3)
    assert (dense["cache"], small["cache"]) == ("dense", "x")
    assert dense["bytes"] == 2 * 3 * small["bytes"] == 2 * 3 * 2 * 20 * 32 * 4
    assert 0 < small["difference"] < 1e-5
    assert small["ratio"]["n"] == 3
    assert dense["ratio"]["median"] == 1


def test_what_ships_is_of_whole_runs_and_the_ledger_reads_it():
    found = document("cross-speed-cpu.json")
    assert [(row["batch"], row["cache"]) for row in found["rows"]] == [
        (b, c) for b in (1, 4, 16) for c in ("dense", "x")
    ]
    assert all(row["ratio"]["n"] == STEPS and row["difference"] < 1e-5 for row in found["rows"])
    assert any(one["file"] == "cross-speed-cpu.json" for one in claim("slim-whisper-speed")["measured"])
