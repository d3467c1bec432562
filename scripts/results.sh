#!/usr/bin/env bash
# Measures the tables of docs/results.md: FDC on a model at several rates, with adaptive and uniform
# ranks, calibrated on random tokens and on text; with EXAMPLES above 0 also every built-in task.
#   scripts/results.sh [MODEL [EXAMPLES]]
set -euo pipefail
cd "$(dirname "$0")/.."
model=${1:-models/lathe-nano} n_examples=${2:-0}
kvlathe=build/release/bin/kvlathe
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$kvlathe" calibrate -m "$model" --random-tokens 8192 -o "$work/random.safetensors" >/dev/null
"$kvlathe" calibrate -m "$model" --text "$model/calibration.txt" -o "$work/text.safetensors" >/dev/null

for source in random text; do
  for ranks in adaptive uniform; do
    specs=()
    if [ "$source $ranks" = "random adaptive" ]; then specs+=(--kv none); fi
    for rate in 0.1 0.2 0.3 0.4 0.5 0.6 0.7; do
      specs+=(--kv "fdc(rate=$rate,ranks=$ranks)")
    done
    echo "## Calibrated on $source, $ranks ranks"
    echo
    "$kvlathe" compare -m "$model" --basis "$work/$source.safetensors" "${specs[@]}"
    if [ "$n_examples" -gt 0 ]; then
      echo
      "$kvlathe" eval -m "$model" --basis "$work/$source.safetensors" "${specs[@]}" \
        --task all --task-count "$n_examples"
    fi
    echo
  done
done
