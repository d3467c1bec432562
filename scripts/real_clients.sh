#!/usr/bin/env bash
# Installs clients that people use, from PyPI into .cache/clients, and runs them against `kvlathe serve` of a build:
#   scripts/real_clients.sh                       the packages of OpenAI and of Ollama, lm-evaluation-harness, curl as
#                                                 the pages print it
#   scripts/real_clients.sh openai | ollama | harness | curl
# KVLATHE (build/release/bin/kvlathe) and MODEL (models/lathe-nano) may say otherwise. Needs python3-venv, and the
# first time a network; everything else is on 127.0.0.1.
set -euo pipefail
cd "$(dirname "$0")/.."

kvlathe=$(realpath "${KVLATHE:-build/release/bin/kvlathe}")
model=$(realpath "${MODEL:-models/lathe-nano}")
venv=$PWD/.cache/clients

# install PACKAGE==VERSION: unless it is there in that version.
install() {
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  "$venv/bin/pip" -q --disable-pip-version-check install "$1"
}

run_openai() {
  install openai==3.57 &&
    "$venv/bin/python" -B tests/clients/openai_client_test.py "$kvlathe" "$model"
}
run_ollama() {
  install ollama==0.6.1 &&
    "$venv/bin/python" -B tests/clients/ollama_client_test.py "$kvlathe" "$model"
}
run_harness() {
  # The extra has what local-completions needs; torch is not among it.
  install "lm-eval[api]==0.4.13" &&
    "$venv/bin/python" -B tests/clients/lm_eval_test.py "$kvlathe" "$model"
}
run_curl() { python3 -B tests/clients/curl_test.py "$kvlathe" "$model"; }

[ $# -gt 0 ] || set -- openai ollama harness curl
status=0
for client in "$@"; do
  case $client in
    openai | ollama | harness | curl) echo "scripts/real_clients.sh: $client"; "run_$client" || status=1 ;;
    *) echo "scripts/real_clients.sh: unknown client $client; there are openai, ollama, harness and curl" >&2; exit 2 ;;
  esac
done
exit $status
