#!/usr/bin/env bash
# Builds one fuzz target with libFuzzer (clang 14), AddressSanitizer and UndefinedBehaviorSanitizer and
# runs it on its corpus:  scripts/fuzz.sh safetensors|sequence_file|session_state|spec|attend_packed [SECONDS] [libFuzzer options]
# Findings and the grown corpus go to build/fuzz/; the corpus in fuzz/corpus/ is only read.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${1:-safetensors}
seconds=${2:-60}
case $target in
  safetensors) sources="src/io/safetensors_fuzz.cc src/io/safetensors_header.cc" ;;
  sequence_file | session_state)
    sources="$(ls src/kv/blocks/*.cc src/kv/quantizer/*.cc src/kv/spec*.cc | grep -v -e _test.cc -e _fuzz.cc)
      src/kv/cache_layout.cc src/kv/seal_schedule.cc src/kernels/cpu/packed_layout.cc src/base/crc32c.cc
      src/base/units.cc src/io/atomic_file.cc src/io/mapped_file.cc src/io/system_error.cc"
    case $target in
      sequence_file) sources="$sources src/kv/blocks/sequence_file_fuzz.cc" ;;
      *) sources="$sources src/engine/session_fuzz.cc src/engine/session.cc src/engine/sampler.cc" ;;
    esac ;;
  attend_packed)
    sources="$(ls src/kernels/cpu/attend*.cc | grep -v -e _test.cc -e _ref.cc -e _bench.cc -e _problem.cc -e emulated -e _avx2.cc)
      src/kernels/cpu/packed_layout.cc src/base/cpu_features.cc src/tensor/dtype.cc"
    # Every instruction set of the machine is run, so all may be compiled for it, but for the files
    # whose vectors are as wide as their flags allow.
    flags="-march=native -Wno-gcc-compat"
    avx2_sources="src/kernels/cpu/attend_avx2.cc" ;;
  spec) sources=$(ls src/kv/spec*.cc | grep -v _test.cc) ;;
  *) echo "scripts/fuzz.sh: no fuzz target '$target'; there are safetensors, sequence_file, session_state, spec and attend_packed" >&2; exit 2 ;;
esac

out=build/fuzz/$target
mkdir -p "$out/corpus" "$out/findings"
compile="clang++-14 -std=c++20 -O1 -g -Isrc -fsanitize=fuzzer,address,undefined
  -fno-sanitize-recover=undefined"
objects=""
for source in ${avx2_sources:-}; do
  object=$out/$(basename "$source" .cc).o
  $compile -mavx2 -mfma -mf16c -Wno-gcc-compat -c "$source" -o "$object"
  objects="$objects $object"
done
# shellcheck disable=SC2046,SC2086  # lists of sources and of flags
$compile ${flags:-} $sources $objects -o "$out/fuzz" \
  $(pkg-config --cflags --libs absl_status absl_statusor absl_strings fmt)
exec "$out/fuzz" -max_total_time="$seconds" -max_len=4096 -timeout=10 -print_final_stats=1 \
  -artifact_prefix="$out/findings/" "${@:3}" "$out/corpus" "fuzz/corpus/$target"
