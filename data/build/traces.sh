#!/usr/bin/env bash
# The shipped Trace: what the app shows before any model is loaded. Run it again after an adapter changes.
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p data/traces
"${PYTHON:-python}" -m focus_core trace --model smollm2 --variant focus --adapter smollm2-directed-k16 \
  --text "persuasion opening" --layers 1,9,20 --out data/traces/persuasion-opening.npz
