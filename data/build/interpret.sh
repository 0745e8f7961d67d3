#!/usr/bin/env bash
# What the groups are, recorded: data/results/interpret-*.json.gz, on a CPU; a stopped run goes on where it was.
#
# One seed of SmolLM2's routers ships. Whether another seed finds the same groups is asked of the small GPT-2, whose
# routers train in four minutes a seed: 200 steps, which is short.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python}
work=build/interpret results=${RESULTS:-data/results}
texts=('brown news' 'brown editorial' 'brown religion' 'brown hobbies'
  'brown government' 'brown learned' 'brown fiction' 'brown adventure')

for seed in 0 1 2; do
  "$python" -m focus_core train --model gpt2-novels --steps 200 --context 1024 --batch 1 --warmup 20 \
    --validate-every 200 --validation-windows 4 --checkpoint-every 20 --seed "$seed" --out "$work/gpt2-seed$seed"
done
"$python" -m focus_core interpret --model gpt2-novels --adapter "$work/gpt2-seed0" \
  --against "$work/gpt2-seed1" "$work/gpt2-seed2" --text "${texts[@]}" --json "$results/interpret-gpt2-novels-k16.json.gz"
"$python" -m focus_core interpret --adapter smollm2-directed-k16 --kmeans smollm2-kmeans-k16 \
  --against smollm2-shared-k8 smollm2-shared-k4 --text "${texts[@]}" --json "$results/interpret-directed-k16.json.gz"
"$python" -m focus_core interpret --adapter smollm2-shared-k8 --against smollm2-shared-k4 smollm2-directed-k16 \
  --text "${texts[@]}" --json "$results/interpret-shared-k8.json.gz"
