#!/usr/bin/env bash
# Installs the packages that the build, the tests and the checks need (Debian 12), as root or through
# sudo, and fetches the sources that Debian does not have (scripts/fetch_jinja.sh, fetch_xgrammar.sh). Asks only for what is
# missing, so a second run does nothing and needs no network.
#   scripts/bootstrap.sh                 what the engine needs
#   KVLATHE_GRAMMAR=OFF scripts/bootstrap.sh
#                                        the same without XGrammar, where no package index can be reached: the
#                                        server then refuses response_format and strict tools
#   scripts/bootstrap.sh --with-trainer  libtorch too, for `kvlathe retrofit` (about 850 MB on disk)
#   scripts/bootstrap.sh --with-browser  Chromium too, for the tests of `kvlathe report` and of the server's page
#                                        (about 400 MB); without it those parts are skipped
#   scripts/bootstrap.sh --with-cuda     the toolkit of CUDA too, for `cmake --preset cuda` (about 850 MB on disk), where the
#                                        system has no nvcc; no package of it is installed (scripts/fetch_cuda.sh)
#   scripts/bootstrap.sh --with-python   what the Python module is built and tested with too (scripts/python_env.sh); where no
#                                        package index can be reached, the module is not built; --with-python-tests has
#                                        what its tests of the second ring need, too
#   scripts/bootstrap.sh --with-deploy   HAProxy, the checkers of deploy/ (one of them from PyPI), zsh and fish, and what builds
#                                        containers too; without them those tests are skipped
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  # build
  g++ cmake ninja-build pkg-config ca-certificates git
  # libraries, as in cmake/dependencies.cmake; ocl-icd-opencl-dev is what libdnnl-dev's own CMake
  # file asks for
  libabsl-dev libfmt-dev nlohmann-json3-dev libeigen3-dev libdnnl-dev
  ocl-icd-opencl-dev libcli11-dev libgtest-dev libgmock-dev libbenchmark-dev libpcre2-dev
  libutf8proc-dev libsentencepiece-dev libedit-dev libboost1.81-dev libboost-context1.81-dev prometheus-cpp-dev
  libcurl4-openssl-dev openmpi-bin libopenmpi-dev
  # checks and fuzzing
  python3 clang-14 libclang-rt-14-dev clang-format-14 clang-tidy-14
)

with_deploy=
with_cuda=
with_python=
python_tests=()
for argument in "$@"; do
  case "$argument" in
    # The fast BLAS is for training in F32; BF16 runs on oneDNN.
    --with-trainer) packages+=(libtorch-dev libgloo-dev libopenblas0-pthread) ;;
    --with-browser) packages+=(chromium chromium-driver python3-selenium) ;;
    --with-deploy)
      packages+=(haproxy curl systemd dpkg-dev lintian man-db zsh fish buildah mmdebstrap uidmap python3-pip python3-venv)
      with_deploy=1
      ;;
    --with-cuda) with_cuda=1 ;;
    --with-python | --with-python-tests)
      packages+=(python3-dev python3-venv)
      with_python=1
      [ "$argument" = --with-python ] || python_tests=(--tests)
      ;;
    *)
      echo "scripts/bootstrap.sh: unknown argument $argument; there are --with-trainer, --with-browser, --with-cuda," \
        "--with-python, --with-python-tests and --with-deploy" >&2
      exit 2
      ;;
  esac
done

# What Debian does not have comes from a package index.
python3 -m pip --version >/dev/null 2>&1 || packages+=(python3-pip)

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done

# install_deploy_checker: a checker of deploy/ from PyPI, into an environment of its own. Its tests are left out
# where PyPI cannot be reached.
install_deploy_checker() {
  local folder=$PWD/.cache/deploy
  [ ! -x "$folder/bin/kubernetes-validate" ] || return 0
  { python3 -m venv "$folder" && "$folder/bin/pip" install -q kubernetes-validate==1.37.0; } >&2 ||
    echo "scripts/bootstrap.sh: kubernetes-validate was not installed; its test is skipped" >&2
}

# fetch_what_is_missing: all that does not come from apt.
fetch_what_is_missing() {
  scripts/fetch_jinja.sh || exit 1
  [ "${KVLATHE_GRAMMAR:-ON}" = OFF ] || scripts/fetch_xgrammar.sh || exit 1
  [ -z "$with_deploy" ] || install_deploy_checker
  [ -z "$with_cuda" ] || fetch_cuda
  [ -z "$with_python" ] || scripts/python_env.sh ${python_tests[@]+"${python_tests[@]}"} ||
    echo "scripts/bootstrap.sh: the Python module is not built, and its tests are skipped" >&2
}

# fetch_cuda: the toolkit, or what the one of the system lacks.
fetch_cuda() {
  if command -v nvcc >/dev/null; then
    command -v nvdisasm >/dev/null || scripts/fetch_cuda.sh --disassembler || exit 1
  else
    scripts/fetch_cuda.sh || exit 1
  fi
}

if [ ${#missing[@]} -eq 0 ]; then
  fetch_what_is_missing
  exit 0
fi

if ! command -v apt-get >/dev/null; then
  echo "scripts/bootstrap.sh: no apt-get here; on Debian 12 these are missing: ${missing[*]}" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "scripts/bootstrap.sh: run it as root, to install: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
# ${as_root[@]+...}: an empty array counts as unset in older shells.
apt=(${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)

log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "scripts/bootstrap.sh: installing ${missing[*]}"
if ! { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${missing[@]}"; } \
  >"$log" 2>&1 </dev/null; then
  tail -n 20 "$log" >&2
  echo "scripts/bootstrap.sh: apt-get failed (its last lines are above)" >&2
  exit 1
fi
fetch_what_is_missing
