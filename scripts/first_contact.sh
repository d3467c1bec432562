#!/usr/bin/env bash
# What a GPU is tried with first, in one run of at most eight minutes on a machine that needs a driver and nothing else:
#   scripts/first_contact.sh pack [--emulated] [FOLDER]
#       makes FOLDER (build/first_contact), below 64 MiB: programs and tests of kernels of build/cuda (--emulated: those of
#       build/release, with the emulated device), the libraries that they load, a model, and this script
#   FOLDER/first_contact.sh run [--out FILE] [--seconds 480]
#       does all stages, each in its time, later ones also after failures, and writes what came of them as JSON
#       (FOLDER/result.json). It exits with 0 if none failed.
# A stage that needs a tool which is not there (compute-sanitizer, ncu, PyTorch) says that it was left out. What
# programs said lies in FOLDER/logs.
set -uo pipefail

most_bytes=$((64 << 20))
specs=(none 'int8' 'kivi(bits=4)' 'kivi(bits=2)' 'window(size=128,sink=4)' 'lathe(ratio=4)' 'lathe(ratio=8)' 'palu(rate=0.5)')
# How far perplexity on the GPU may be from that on processors: rows are in 16 bits on both, and summed in another order.
tolerance=0.02

fail() {
  echo "first_contact.sh: $1" >&2
  exit 2
}

# --- pack ---

# libraries_of PROGRAM...: what they load, but for the parts of the C library, which must be those of the machine's own kernel
# and loader.
libraries_of() {
  ldd "$@" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | sort -u |
    grep -Ev '/(libc|libm|libdl|librt|libpthread|libresolv|libutil|ld-linux[^/]*)\.so'
}

pack() {
  local mode=gpu build=build/cuda suffix=_gpu program=kvlathe folder
  if [ "${1:-}" = --emulated ]; then
    mode=emulated build=${KVLATHE_BUILD:-build/release} suffix='' program=kvlathe_emulated
    shift
  fi
  folder=${1:-build/first_contact}
  cd "$(dirname "$0")/.." || exit 2
  [ -x "$build/bin/$program" ] || fail "$build/bin/$program is not built"
  rm -rf "$folder"
  mkdir -p "$folder/files/bin" "$folder/files/lib" || exit 2
  cp "$build/bin/$program" "$folder/files/bin/kvlathe" || exit 2
  cp "$build/bin/cuda_bench$suffix" "$folder/files/bin/cuda_bench" || fail "cuda_bench$suffix is not built"
  # Under emulation all of them are tests of the build anyway.
  local test tests=("$build"/bin/cuda_*_test"$suffix")
  [ "$mode" = gpu ] || tests=("$build/bin/cuda_memory_test")
  for test in "${tests[@]}"; do
    [ ! -x "$test" ] || cp "$test" "$folder/files/bin/"
  done
  strip "$folder"/files/bin/*
  # shellcheck disable=SC2046  # no library has a space in its name
  cp -L $(libraries_of "$folder"/files/bin/*) "$folder/files/lib/" || exit 2
  strip --strip-unneeded "$folder"/files/lib/* 2>/dev/null
  mkdir "$folder/files/lathe-nano"
  cp models/lathe-nano/{config,generation_config,tokenizer_config}.json models/lathe-nano/{model.safetensors,tokenizer.model} \
    models/lathe-nano/{sample,calibration}.txt "$folder/files/lathe-nano/" || exit 2
  write_shape "$folder/files/llama-8b.json" 4096 14336 32 32 8 128256
  write_shape "$folder/files/tiny.json" 256 512 2 4 2 512
  # The tests hold the same kernels, which a window of 64 MiB sees.
  export XZ_OPT=-9
  [ "$mode" = gpu ] || XZ_OPT=-0
  tar -C "$folder" -cJf "$folder/files.tar.xz" files || fail "tar or xz failed"
  rm -rf "$folder/files"
  cp "scripts/first_contact.sh" "$folder/"
  echo "$mode" >"$folder/mode"
  local n_bytes
  n_bytes=$(du -sb "$folder" | cut -f1)
  [ "$n_bytes" -lt "$most_bytes" ] ||
    fail "$folder has $n_bytes bytes, more than $most_bytes; build for the GPU at hand alone (KVLATHE_CUDA_ARCHITECTURES)"
  echo "$folder: $n_bytes bytes, $mode"
}

# write_shape FILE WIDTH FEED LAYERS HEADS KV_HEADS VOCABULARY: a config.json for weights that are drawn at random.
write_shape() {
  cat >"$1" <<END
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": $2, "intermediate_size": $3,
 "num_hidden_layers": $4, "num_attention_heads": $5, "num_key_value_heads": $6, "vocab_size": $7,
 "max_position_embeddings": 131072, "rope_theta": 500000.0, "rms_norm_eps": 1e-05, "hidden_act": "silu",
 "tie_word_embeddings": false, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2}
END
}

# --- run ---

# text_as_json: standard input as a string of JSON.
text_as_json() {
  printf '"'
  tr -d '\000-\010\013-\037' | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/\t/ /g' | awk '{printf "%s\\n", $0}'
  printf '"'
}

seconds_left() { echo $((deadline - SECONDS)); }

# stage NAME SECONDS FUNCTION: runs the function in a time of its own. It writes JSON to the file that it is given, and
# returns 77 where something is missing that it needs; the last line that it prints says what.
stage() {
  local name=$1 limit=$2 work=$3 left status start=$SECONDS json="$logs/$1.json" log="$logs/$1.log" state
  left=$(seconds_left)
  [ "$left" -ge "$limit" ] || limit=$left
  if [ "$limit" -lt 2 ]; then
    state='left out' status=77
    echo "no time was left" >"$log"
  else
    rm -f "$json"
    "$timeout" -k 3 "$limit" "$BASH" "$here/first_contact.sh" work "$work" "$json" >"$log" 2>&1
    status=$?
    case $status in
      0) state=passed ;;
      77) state='left out' ;;
      124 | 137) state='out of time' ;;
      *) state=failed ;;
    esac
  fi
  [ "$state" = passed ] || [ "$state" = 'left out' ] || n_failed=$((n_failed + 1))
  echo "$name: $state, $((SECONDS - start)) s; $(tail -n 1 "$log" | cut -c 1-120)"
  {
    [ "$is_first" = 1 ] || printf ',\n'
    printf '  {"stage": "%s", "state": "%s", "seconds": %d, "limit": %d, "said": ' "$name" "$state" $((SECONDS - start)) "$limit"
    tail -n 5 "$log" | text_as_json
    if [ -s "$json" ]; then
      printf ', "result": '
      cat "$json"
    fi
    printf '}'
  } >>"$out"
  is_first=0
}

run() {
  here=$(cd "$(dirname "$0")" && pwd) || exit 2
  out=$here/result.json
  local seconds=480
  while [ $# -gt 0 ]; do
    case $1 in
      --out) out=$2 ;;
      --seconds) seconds=$2 ;;
      *) fail "unknown argument $1; there are --out and --seconds" ;;
    esac
    shift 2 || fail "an argument lacks its value"
  done
  [ -f "$here/files.tar.xz" ] || fail "$here holds no package; scripts/first_contact.sh pack makes one"
  timeout=$(command -v timeout) || fail "timeout is not there"
  logs=$here/logs n_failed=0 is_first=1 deadline=$((SECONDS + seconds))
  mkdir -p "$logs"
  printf '{"mode": "%s", "stages": [\n' "$(cat "$here/mode")" >"$out" || fail "cannot write $out"
  stage machine 10 describe_machine
  stage unpack 20 unpack
  stage kernels 60 test_kernels
  stage statistics 20 calibrate
  stage sanitizer 60 sanitize
  stage logits 40 compare_logits
  stage attention 90 measure_attention
  stage model 70 measure_model
  stage prompts 50 measure_prompts
  stage profile 60 profile_kernels
  printf '\n], "failed": %d}\n' "$n_failed" >>"$out"
  echo "$out: $n_failed stages failed, $SECONDS s"
  [ "$n_failed" -eq 0 ]
}

# What a stage does runs in a process of its own, in the folder of files.
work() {
  here=$(cd "$(dirname "$0")" && pwd) || exit 2
  mode=$(cat "$here/mode")
  json=$2
  [ "$1" = unpack ] || [ "$1" = describe_machine ] || cd "$here/files" || exit 1
  export PATH=$PATH:/usr/local/cuda/bin
  # cuBLASLt is the machine's: a toolkit's, or that of a package of Python.
  local cublas
  cublas=$(python3 -c 'import glob, site, sys
for folder in site.getsitepackages() + [site.getusersitepackages()]:
    for found in glob.glob(folder + "/nvidia/*/lib/libcublasLt.so.1*"):
        print(found.rsplit("/", 1)[0]); sys.exit()' 2>/dev/null)
  export LD_LIBRARY_PATH=$here/files/lib:${cublas:+$cublas:}/usr/local/cuda/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export KVLATHE_EMULATED_BYTES=$((200 << 20))
  "$1"
}

on_gpu() { [ "$mode" = gpu ]; }
leave_out() {
  echo "$1"
  exit 77
}

describe_machine() {
  printf '{"kernel": %s, "c_library": %s, "gpu": %s}' "$(uname -sr | text_as_json)" "$(ldd --version 2>&1 | head -n 1 | text_as_json)" \
    "$({ nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.memory --format=csv,noheader 2>/dev/null ||
      echo none; } | text_as_json)" >"$json"
  nvidia-smi 2>&1 | head -n 20
  echo "described"
}

unpack() {
  tar -C "$here" -xJf "$here/files.tar.xz" || exit 1
  echo "$(find "$here/files" -type f | wc -l) files"
}

test_kernels() {
  local test status n_failed=0 separator=''
  printf '{' >"$json"
  for test in bin/cuda_*_test*; do
    timeout -k 2 25 "$test" --gtest_brief=1 >"$here/logs/$(basename "$test").log" 2>&1
    status=$?
    tail -n 3 "$here/logs/$(basename "$test").log"
    [ "$status" -eq 0 ] || n_failed=$((n_failed + 1))
    printf '%s"%s": %d' "$separator" "$(basename "$test")" "$status" >>"$json"
    separator=', '
  done
  printf '}' >>"$json"
  echo "$n_failed programs of tests failed"
  [ "$n_failed" -eq 0 ]
}

sanitize() {
  on_gpu && command -v compute-sanitizer >/dev/null || leave_out "compute-sanitizer is not there"
  local tool status n_failed=0
  for tool in memcheck racecheck; do
    timeout -k 2 28 compute-sanitizer --tool "$tool" --error-exitcode 9 bin/cuda_decode_test_gpu --gtest_filter='*/0:-*Death*' \
      >"$here/logs/$tool.log" 2>&1
    status=$?
    tail -n 3 "$here/logs/$tool.log"
    [ "$status" -eq 0 ] || n_failed=$((n_failed + 1))
    echo "$tool: exit $status"
  done
  [ "$n_failed" -eq 0 ]
}

# Of the model, for caches with a basis.
calibrate() {
  local n_tokens=8192
  on_gpu || n_tokens=2048
  bin/kvlathe calibrate -m lathe-nano --text lathe-nano/calibration.txt --tokens "$n_tokens" -o basis.safetensors || return 1
}

# number_of FILE KEY: of a JSON object.
number_of() { sed -n "s/.*\"$2\":[ ]*\([-+0-9.e]*\).*/\1/p" "$1" | head -n 1; }

# Perplexity of a text and a greedy answer on the GPU and on processors, for each spec.
compare_logits() {
  local n_bytes=3000 n_tokens=32 n_specs=${#specs[@]} spec device at=0 separator='' off n_failed=0
  on_gpu || { n_bytes=300 n_tokens=4 n_specs=3; specs=(none 'kivi(bits=4)' 'lathe(ratio=8)'); }
  head -c "$n_bytes" lathe-nano/sample.txt >text.txt
  printf '[' >"$json"
  for spec in "${specs[@]:0:$n_specs}"; do
    at=$((at + 1))
    for device in cpu cuda; do
      bin/kvlathe eval -m lathe-nano --device "$device" --kv "$spec" --basis basis.safetensors --perplexity text.txt --json \
        >"eval.$device" || echo "{}" >"eval.$device"
      bin/kvlathe run -m lathe-nano --device "$device" --kv "$spec" --basis basis.safetensors -p 'Once upon a time' -n "$n_tokens" --temp 0 \
        >"run.$device" 2>/dev/null ||
        echo "failed on $device" >"run.$device"
    done
    off=$(awk -v a="$(number_of eval.cpu perplexity)" -v b="$(number_of eval.cuda perplexity)" \
      'BEGIN {if (a + 0 <= 0 || b + 0 <= 0) print 1; else print (a > b ? a - b : b - a) / a}')
    awk -v off="$off" -v most="$tolerance" 'BEGIN {exit !(off <= most)}' || n_failed=$((n_failed + 1))
    printf '%s{"kv": "%s", "perplexity_cpu": %s, "perplexity_gpu": %s, "off": %s, "same_text": %s}' "$separator" "$spec" \
      "$(number_of eval.cpu perplexity | grep . || echo null)" "$(number_of eval.cuda perplexity | grep . || echo null)" "$off" \
      "$(cmp -s run.cpu run.cuda && echo true || echo false)" >>"$json"
    separator=', '
    echo "$spec: perplexity differs by $off"
  done
  printf ']' >>"$json"
  echo "$n_failed of $at specs are further than $tolerance off"
  [ "$n_failed" -eq 0 ]
}

measure_attention() {
  local sizes=(--entries '8192,32768') status
  on_gpu || sizes=(--entries 128 --heads 1 --repeats 1 --copy-mib 4)
  timeout -k 2 60 bin/cuda_bench "${sizes[@]}" >bench.json || return 1
  printf '{"cuda_bench": %s, "sdpa": ' "$(cat bench.json)" >"$json"
  if on_gpu && python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    timeout -k 2 28 python3 - >sdpa.json <<'END' || echo null >sdpa.json
import json, torch
results = []
for n in (8192, 32768):
    shape = (256, 1, n, 128)
    k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in "kv")
    q = torch.randn((256, 8, 1, 128), device="cuda", dtype=torch.bfloat16).transpose(1, 2)  # 8 rows see the same keys
    run = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)
    run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(10):
        run()
    end.record()
    torch.cuda.synchronize()
    seconds = begin.elapsed_time(end) / 1e4
    results.append({"entries": n, "microseconds": seconds * 1e6, "gb_per_s": 2 * k.numel() * 2 / seconds * 1e-9})
    del k, v, q
print(json.dumps(results))
END
    cat sdpa.json >>"$json"
  else
    printf 'null' >>"$json"
    echo "PyTorch with a GPU is not there: no SDPA beside it"
  fi
  printf '}' >>"$json"
  cat bench.json
  echo "measured"
}

# bench_model ARGUMENTS: one run of `kvlathe bench model`, appended to the list in $json.
bench_model() {
  local output
  if output=$(bin/kvlathe bench model --device cuda --random-model "$shape" --no-bandwidth -r 1 --json "$@"); then
    printf '%s%s' "$separator" "$output" >>"$json"
    separator=', '
  else
    n_failed=$((n_failed + 1))
  fi
}

measure_model() {
  local shape=llama-8b.json separator='' n_failed=0 kv depth=4096 parallel=1,8,32 n_gen=32 caches=(none 'kivi(bits=4)' 'lathe(ratio=8)')
  on_gpu || shape=tiny.json depth=64 parallel=1,2 n_gen=2 caches=(none 'kivi(bits=4)')
  printf '[' >"$json"
  for kv in "${caches[@]}"; do
    bench_model --kv "$kv" -p 0 -n "$n_gen" -d "$depth" --parallel "$parallel"
  done
  printf ']' >>"$json"
  echo "$n_failed of ${#caches[@]} caches failed"
  [ "$n_failed" -eq 0 ]
}

measure_prompts() {
  local shape=llama-8b.json separator='' n_failed=0 kv n=8192 caches=(none 'kivi(bits=4)' 'lathe(ratio=8)')
  on_gpu || shape=tiny.json n=128 caches=(none 'kivi(bits=4)')
  printf '[' >"$json"
  for kv in "${caches[@]}"; do
    bench_model --kv "$kv" -p "$n" -n 0
  done
  printf ']' >>"$json"
  echo "$n_failed of ${#caches[@]} caches failed"
  [ "$n_failed" -eq 0 ]
}

profile_kernels() {
  on_gpu && command -v ncu >/dev/null || leave_out "ncu is not there"
  ncu --set full --kernel-name 'regex:Decode' --launch-count 3 --csv --page raw bin/cuda_bench --entries 8192 --heads 64 --repeats 1 \
    >"$here/logs/ncu.csv" || return 1
  echo "$(wc -l <"$here/logs/ncu.csv") lines in logs/ncu.csv"
}

case ${1:-} in
  pack | run | work)
    command=$1
    shift
    "$command" "$@"
    ;;
  *) fail "needs pack or run; the first lines of this script say how" ;;
esac
