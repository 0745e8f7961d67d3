"""The trainings of ``experiments/frontier-eighth.toml`` that were cut by time, as one small record.

python -m data.build.eighth build/experiments

They wrote no result of their own. What each was asked for, how far it came and what its served mask reached on the
validation slice goes to ``data/results/training-eighth.json``, which ``docs/results.md`` is held to.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from focus_core.assets import DATA
from focus_core.errors import InvalidInput
from focus_core.experiments.plan import CONFIG, RECORD, read_plan
from focus_core.jobs.files import read_json, write_json

PLAN = DATA.parent / "experiments" / "frontier-eighth.toml"
OUT = DATA / "results" / "training-eighth.json"
_ASKED = "groups query_topk window context batch steps learning_rate start_from"


def trained(folder: Path) -> dict[str, Any]:
    """What a training's folder tells: its settings, the steps it ran and the served perplexity on the way.

    Args:
        folder: of the adapter; ``step`` is the last that ran, ``best_step`` the one whose weights were kept.
    """
    record, config = read_json(folder / RECORD), read_json(folder / CONFIG)
    if record is None or config is None:
        raise InvalidInput(f"{folder} has no training.", f"It needs {RECORD} and {CONFIG}.")
    validations = [
        {"step": row["step"], "served_ppl": row["served_ppl"], "kept_pairs": row["kept_pairs"]}
        for row in record["log"]
        if "served_ppl" in row
    ]
    return {
        "settings": {name: record["settings"][name] for name in _ASKED.split()},
        "step": record["step"],
        "best_step": record["best_step"],
        "served_validation_ppl": record["best_ppl"],
        "dense_validation_ppl": record["dense_ppl"],
        "seconds": round(record["seconds"], 1),
        "validations": validations,
        "environment": config["record"]["environment"],
    }


def main(places: list[str]) -> int:
    """Write the record of every line of the plan that is in one of these folders; the others are named."""
    plan = [task for task in read_plan([PLAN], Path("build/experiments"), OUT.parent) if task.asked is not None]
    lines, missing = {}, []
    for task in plan:
        name, folders = task.name.removeprefix("train-"), [Path(place) / task.place.name for place in places]
        folder = next((one for one in folders if (one / RECORD).exists()), None)
        if folder is None:
            missing.append(name)
        else:
            lines[name] = {"command": task.command, **trained(folder)}
    write_json(OUT, {"plan": f"experiments/{PLAN.name}", "not_run": missing, "lines": lines}, indent=1)
    print(f"{len(lines)} trainings, not run: {', '.join(missing) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["build/experiments"]))
