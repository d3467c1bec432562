#!/usr/bin/env bash
# Builds one fuzz target with libFuzzer (clang 14), AddressSanitizer and UndefinedBehaviorSanitizer and
# runs it on its corpus:  scripts/fuzz.sh TARGET [SECONDS] [libFuzzer options]
# TARGET: safetensors, gguf, model_config, spec, http_request, api, sequence_file, sequence_stream, session_state, prefix_file, prompt_question,
# restored_sequence, attend_packed, rank_message, regex or chat_template.
# Findings and the grown corpus go to build/fuzz/; the corpus in fuzz/corpus/ is only read.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${1:-safetensors}
seconds=${2:-60}

# sources FOLDERS...: their code, without tests, references and benchmarks.
sources() {
  find "${@/#/src/}" -name '*.cc' | grep -v -E '_(test|fixture|fuzz|bench|ref|ref_read|reference|problem|emulated)\.cc$' | sort
}

libraries=""
engine=$(ls build/jinja/common/jinja/*.cpp build/jinja/common/json.cpp build/jinja/common/unicode.cpp)
case $target in
  safetensors) list="src/io/safetensors/safetensors_fuzz.cc src/io/safetensors/safetensors_header.cc" ;;
  gguf) list="$(ls src/io/gguf/*.cc | grep -v -e _test.cc -e /gguf.cc) src/io/safetensors/safetensors_header.cc" ;;
  http_request) list="$(ls src/server/http/request_*.cc | grep -v _test.cc) src/server/http/chunk_decoder.cc" ;;
  spec) list="src/kv/spec/spec_fuzz.cc $(ls src/kv/spec/*.cc | grep -v -e _test.cc -e _fuzz.cc)" ;;
  prefix_file)
    list="src/engine/prefixes/prefix_file_fuzz.cc src/engine/prefixes/prefix_file.cc $(sources base)" ;;
  prompt_question) list="src/server/prefill/prompt_question_fuzz.cc src/server/prefill/prompt_question.cc" ;;
  sequence_stream)
    list="src/kv/blocks/sequence_stream_fuzz.cc $(sources base tensor io format machine analysis kv)"
    libraries="-lgomp" ;;
  model_config | sequence_file | session_state | restored_sequence)
    list=$(sources base tensor io format machine analysis cpu kv model)
    libraries="-ldnnl -lgomp"
    case $target in
      model_config) list="$list src/model/families/model_config_fuzz.cc" ;;
      sequence_file) list="$list src/kv/blocks/sequence_file_fuzz.cc" ;;
      session_state) list="$list src/engine/session_fuzz.cc src/engine/session.cc src/engine/sampler.cc" ;;
      *) list="$list tests/restored_sequence_fuzz.cc" ;;
    esac ;;
  api)
    list="$(sources base tensor io format machine analysis cpu kv plan model engine server/api)
      src/server/api/api_fuzz.cc $(sources tokenizer chat) $engine"
    libraries="-ldnnl -lgomp -lpthread -labsl_cord -lutf8proc -lpcre2-8 -lsentencepiece" ;;
  rank_message) list="src/lockstep/order_fuzz.cc src/lockstep/order.cc $(sources base)" ;;
  regex)
    list="$(ls src/tokenizer/splitting/*.cc | grep -E '/(regex|regex_fuzz|regex_spelling|char_set)\.cc$') src/tokenizer/utf8.cc"
    libraries="-lutf8proc -lpcre2-8" ;;
  chat_template) list="src/chat/chat_template_fuzz.cc src/chat/jinja_program.cc $engine" ;;
  attend_packed)
    list="src/cpu/kernels/attend/attend_packed_fuzz.cc $(sources cpu/kernels | grep -e /attend/)
      $(sources base tensor format)" ;;
  *) echo "scripts/fuzz.sh: no fuzz target '$target'; the top of the script lists them" >&2; exit 2 ;;
esac

out=build/fuzz/$target
objects=build/fuzz/objects
mkdir -p "$out/corpus" "$out/findings" "$objects"
sanitizers="-fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined"

# Every instruction set of the machine is run, so files may be compiled for it, but for those of another
# one and those whose vectors are as wide as their flags allow. Vector kernels take minutes under the sanitizers: only
# attend_packed has them so, other targets are checked whole with KVLATHE_ISA=scalar.
compile() {
  local source=$1 flags=-march=native checks=$sanitizers object
  object=$objects/$(tr / _ <<<"${source%.cc}")
  case $source in
    *_avx2.cc) flags="-mavx2 -mfma -mf16c" ;;
    *_avx512.cc | *_avx512_f32.cc | *_amx.cc)
      flags="-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vbmi2 -mavx512bf16" ;;
  esac
  case $source in
    src/analysis/bases/* | src/analysis/ranks/* | src/analysis/statistics/*) checks= ;;  # minutes as well, and calibration alone runs them
    *_avx2.cc | *_avx512.cc | *_avx512_f32.cc | *_amx.cc)
      if [ "$target" = attend_packed ]; then object=$object.checked; else checks=; fi ;;
  esac
  # shellcheck disable=SC2086  # lists of flags
  $(command -v ccache) clang++-14 -std=c++20 -O1 -gline-tables-only -Wno-gcc-compat -Isrc -isystem build/jinja/common -isystem src/chat/engine \
    -isystem /usr/include/eigen3 $flags $checks \
    -c "$source" -o "$object.o"
  echo "$object.o"
}
export -f compile
export objects sanitizers target
# shellcheck disable=SC2086
linked=$(printf '%s\n' $list | xargs -P "${JOBS:-$(nproc)}" -I{} bash -c 'set -e; compile {}')
# shellcheck disable=SC2046,SC2086
clang++-14 $sanitizers $linked -o "$out/fuzz" $(pkg-config --libs absl_status absl_statusor absl_strings fmt) $libraries
exec "$out/fuzz" -max_total_time="$seconds" -max_len=4096 -timeout=10 -print_final_stats=1 \
  -artifact_prefix="$out/findings/" "${@:3}" "$out/corpus" "fuzz/corpus/$target"
