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
echo
"$kvlathe" compare -m "$model" \
  --kv none --kv 'fdc(rate=0.25)' --kv 'fdc(rate=0.5)' --kv 'lathe(rate=0.25)' --kv 'h2o(keep=0.5)' --kv int8 \
  --kv 'kivi(bits=4,group=64)' --kv 'kivi(bits=2,group=64)' --kv 'gear(bits=2)' \
  --kv 'fdc(rate=0.25)+kivi(bits=4,group=64)' --kv 'lathe(ratio=4)' --kv 'lathe(ratio=8)'

prompt='The old house stood at the end of the lane, and'
for kv in none 'fdc(rate=0.5)' 'lathe(ratio=8)'; do
  echo
  echo "--kv $kv"
  "$kvlathe" run -m "$model" --kv "$kv" -p "$prompt" -n 64
done
