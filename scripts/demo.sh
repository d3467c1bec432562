#!/usr/bin/env bash
# The main job on a fresh Debian 12 machine: installs packages, builds, compares caches on the embedded
# model, and shows a greedy continuation with three of them.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/bootstrap.sh
cmake --preset release >/dev/null
cmake --build --preset release --target kvlathe

kvlathe=build/release/bin/kvlathe
model=models/lathe-nano
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
basis=$work/basis.safetensors
"$kvlathe" calibrate -m "$model" --text "$model/calibration.txt" -o "$basis"
echo
"$kvlathe" compare -m "$model" --basis "$basis" \
  --kv none --kv 'fdc(rate=0.25)' --kv 'lathe(rate=0.25)' --kv 'lathe(rate=0.5)' --kv 'h2o(keep=0.5)' \
  --kv 'kivi(bits=4,group=64)' --kv 'gear(bits=2)' --kv 'lathe(rate=0.25)+kivi(bits=4,group=64)' \
  --kv 'lathe(rate=0.25)+snapkv(keep=0.5)+kivi(bits=4,group=64)'

prompt='The old house stood at the end of the lane, and'
for kv in none 'lathe(rate=0.5)' 'kivi(bits=2,group=64)'; do
  echo
  echo "--kv $kv"
  "$kvlathe" run -m "$model" --basis "$basis" --kv "$kv" -p "$prompt" -n 64
done
