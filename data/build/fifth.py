"""The shipped table of looks: a fifth of the pairs at 4,096 tokens, chosen from costs that were recorded on a GPU.

    python -m data.build.fifth

``python -m focus_core allocate`` took the costs (data/results/allocate-4096.json.gz has its command) and chose a table
that keeps 0.2 of the validation slice's pairs, and a hundredth of that more of Persuasion's. So what ships is chosen
from the same costs with a budget of 0.195. No other text's loss has a part in it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from focus_core.adapter import CONFIG_FILE
from focus_core.assets import DATA
from focus_core.jobs.files import read_json, write_json
from focus_core.routing.allocation import allocate

BUDGET = 0.195
COSTS = DATA / "results" / "allocate-4096.json.gz"
FROM = "smollm2-directed-k16"
OUT = DATA / "adapters" / "smollm2-directed-k16-fifth"


def choose(found: dict[str, Any], budget: float) -> tuple[list[list[int]], float]:
    """The table that a recorded search's costs give for a budget, and the share of pairs expected of it."""
    rounds = [table for table in found["tables"] if "costs" in table]
    pairs, levels = np.array(rounds[-1]["pairs"]), np.array(found["levels"])
    # As in TableSearch.run: costs are the mean of the rounds', pairs are the last one's.
    loss = np.mean([table["costs"] for table in rounds], 0).reshape(-1, len(levels))
    flat = pairs.reshape(loss.shape)
    picked = allocate(flat, loss, budget)
    return levels[picked].reshape(pairs.shape[:2]).tolist(), float(flat[np.arange(len(flat)), picked].mean())


def main() -> None:
    """Write the adapter's folder; its weights are those of the adapter that it was chosen for."""
    found = read_json(COSTS)
    looks, expected = choose(found, BUDGET)
    document = read_json(DATA / "adapters" / FROM / CONFIG_FILE)
    names = ("by", "start", "levels", "context", "windows", "held_windows")
    about = {"texts": "novels", "from": FROM, "budget": BUDGET, "costs": COSTS.name} | {n: found[n] for n in names}
    made = {name: document[name] for name in ("format", "kind")} | {
        "title": "Directed, K=16, a fifth of pairs",
        "config": document["config"] | {"looks": looks},
        "serve": document["serve"] | {"query_topk": max(1, round(float(np.mean(looks))))},
        "weights": FROM,
        "model": document["model"],
        "record": {
            "texts": document["record"]["texts"],
            "allocation": about | {"expected_pairs": round(expected, 4)},
        },
    }
    write_json(OUT / CONFIG_FILE, made, indent=1)


if __name__ == "__main__":
    main()
