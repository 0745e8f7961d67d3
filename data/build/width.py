"""How wide a router must be: what ``experiments/width.toml`` measured, in one record.

python -m focus_core run experiments/width.toml --results build/width
python -m data.build.width            data/results/width-gpt2-novels.json, from build/width
"""

from __future__ import annotations

from pathlib import Path

from focus_core.experiments.plan import read_plan
from focus_core.jobs.files import read_json, write_json

PLAN, RECORD = Path("experiments/width.toml"), Path("data/results/width-gpt2-novels.json")
WORK, RESULTS = Path("build/experiments"), Path("build/width")
KEPT = (
    *("command", "variant", "config", "ppl", "ppl_se", "nll_diff", "nll_se", "dense_ppl", "tokens", "kept_pairs"),
    *("context", "windows", "text", "dtype"),
)
TRAINED = ("command", "tokens", "seconds", "trained_parameters", "served_validation_ppl", "dense_validation_ppl")


def main() -> None:
    """See the module's text."""
    rows, environment = [], None
    for task in read_plan([PLAN], WORK, RESULTS):
        found = read_json(task.place) if task.asked is None else None
        if found is None:
            continue
        environment = environment or found["environment"]
        row = {"dim": task.needs.asked["dim"] if task.needs and task.needs.asked else None}
        row |= {name: found[name] for name in KEPT if name in found}
        if "training" in found:
            row["training"] = {name: found["training"][name] for name in TRAINED if name in found["training"]}
        rows.append(row)
    about = f"python -m focus_core run {PLAN} --results {RESULTS}"
    write_json(RECORD, {"command": about, "environment": environment, "rows": rows}, indent=1)


if __name__ == "__main__":
    main()
