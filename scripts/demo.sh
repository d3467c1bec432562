#!/usr/bin/env bash
# The main job on a fresh Debian 12 machine: installs packages, builds, compares caches on a model, and
# shows what it writes with three of them.
#   scripts/demo.sh            the embedded model; needs no network once scripts/bootstrap.sh has run
#   scripts/demo.sh smollm2    SmolLM2-135M-Instruct, fetched by scripts/fetch_model.sh; ends with a short
#                              conversation
# Where no package index can be reached: KVLATHE_GRAMMAR=OFF scripts/demo.sh (scripts/bootstrap.sh says what that leaves out).
set -euo pipefail
cd "$(dirname "$0")/.."

name=${1:-lathe-nano}
prompt='The old house stood at the end of the lane, and'
case "$name" in
  lathe-nano)
    model=models/lathe-nano
    caches=(none 'fdc(rate=0.25)' 'fdc(rate=0.5)' 'lathe(rate=0.25)' 'h2o(keep=0.5)' int8
      'kivi(bits=4,group=64)' 'kivi(bits=2,group=64)' 'gear(bits=2)' 'fdc(rate=0.25)+kivi(bits=4,group=64)'
      'lathe(ratio=4)' 'lathe(ratio=8)')
    shown=(none 'fdc(rate=0.5)' 'lathe(ratio=8)') ;;
  smollm2)
    model=models/fetched/smollm2.gguf
    # The same advantage for all that could take it: the newest 32 positions in 16 bits, as lathe has them.
    caches=(none 'int8(newest=32)' 'kivi(bits=4,group=64,newest=32)' 'kivi(bits=3,group=64,newest=32)'
      'kivi(bits=2,group=64,newest=32)' 'gear(bits=2,newest=32)' 'kvquant(bits=3,newest=32)' 'snapkv(keep=0.5)'
      'lathe(ratio=4)' 'lathe(ratio=4,keys=before)' 'lathe(ratio=6)' 'lathe(ratio=8)')
    shown=(none 'kivi(bits=4,group=64,newest=32)' 'lathe(ratio=4)')
    prompt='Once upon a time, in a small village by the sea,' ;;
  *)
    echo "scripts/demo.sh: no demo '$name'; there are smollm2 and, without a name, the embedded model" >&2
    exit 2 ;;
esac

scripts/bootstrap.sh
[ "$name" = lathe-nano ] || scripts/fetch_model.sh "$name"
# Without lines for debuggers: a tenth of the time. Libraries as one source each: half of what is left, unless
# somebody has a build already, of which most would be compiled again.
together=()
[ -e build/release/CMakeCache.txt ] || together=(-DKVLATHE_UNITY_LIBRARIES=ON)
# ${together[@]+...}: an empty array counts as unset in older shells.
cmake --preset release -DKVLATHE_DEBUG_INFO=OFF ${together[@]+"${together[@]}"} -DKVLATHE_GRAMMAR="${KVLATHE_GRAMMAR:-ON}" >/dev/null
cmake --build --preset release --target kvlathe

kvlathe=build/release/bin/kvlathe
echo
arguments=()
for kv in "${caches[@]}"; do arguments+=(--kv "$kv"); done
"$kvlathe" compare -m "$model" "${arguments[@]}"

for kv in "${shown[@]}"; do
  echo
  echo "--kv $kv"
  "$kvlathe" run -m "$model" --kv "$kv" -p "$prompt" -n 64 --temp 0
done

[ "$name" = smollm2 ] || exit 0
echo
echo "A conversation with --kv 'lathe(ratio=4)'"
for message in 'What is the capital of France?' 'And of Italy?' 'Name three rivers of Europe.'; do
  echo "> $message" >&2
  echo "$message"
done | "$kvlathe" chat -m "$model" --kv 'lathe(ratio=4)' -n 64 --temp 0
