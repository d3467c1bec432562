#!/usr/bin/env bash
# Builds the image of deploy/container/Containerfile with buildah, without a daemon, a registry or being root, and runs what
# is in it: the version, a text as the user of the image, and the server with its health check.
#   scripts/container_check.sh --package FILE.deb   the second stage, with a package that is already built (about a minute)
#   scripts/container_check.sh --whole [--ccache FOLDER]
#                                                   both stages; objects of a compiler cache are taken, and added
# The image debian:12 is made by mmdebstrap from the mirror of apt. It needs the Debian packages buildah and mmdebstrap
# (scripts/bootstrap.sh --with-deploy), and ends with 77 where those or the mirror are missing. Who is not root needs uidmap
# too, and ids of their own in /etc/subuid and /etc/subgid, which Debian gives to every user that is added.
set -euo pipefail
cd "$(dirname "$0")/.."

package='' whole='' ccache=''
while [ $# -gt 0 ]; do
  case $1 in
    --package) package=${2:?--package needs a file}; shift 2 ;;
    --ccache) ccache=${2:?--ccache needs a folder}; shift 2 ;;
    --whole) whole=1; shift ;;
    *) echo "scripts/container_check.sh: unknown argument $1; there are --package, --whole and --ccache" >&2; exit 2 ;;
  esac
done
[ -n "$package$whole" ] || { echo "scripts/container_check.sh: give --package FILE.deb or --whole" >&2; exit 2; }
for program in buildah mmdebstrap; do
  command -v $program >/dev/null || { echo "scripts/container_check.sh: $program is not installed; skipped" >&2; exit 77; }
done

work=$(mktemp -d "${TMPDIR:-/tmp}/kvlathe_container.XXXXXX")
buildah=(buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs)
finish() {
  "${buildah[@]}" rm --all >/dev/null 2>&1 || true
  # Files of other users, where the user is not root, are removed by who owns them there.
  if [ "$(id -u)" = 0 ]; then rm -rf "$work"; else buildah unshare rm -rf "$work"; fi
}
trap finish EXIT
fail() { echo "scripts/container_check.sh: $*" >&2; exit 1; }
log=$work/log
quietly() { "$@" >"$log" 2>&1 || { tail -n 30 "$log" >&2; fail "this failed: ${*:1:6} ..."; }; }

if ! mmdebstrap --variant=minbase bookworm "$work/base.tar" >"$log" 2>&1; then
  tail -n 5 "$log" >&2
  echo "scripts/container_check.sh: no Debian 12 could be made from the mirror of apt; skipped" >&2
  exit 77
fi
printf 'FROM scratch\nADD base.tar /\n' >"$work/Base"
quietly "${buildah[@]}" build --isolation chroot -f "$work/Base" -t debian:12 "$work"

# A build by hand differs from this one by the first stage alone, where a package is given, or by where its compiler keeps
# objects and its clients their certificates.
file=$work/Containerfile
options=(--isolation chroot --pull=never --format docker)
if [ -n "$package" ]; then
  mkdir "$work/context"
  cp "$package" "$work/context/"
  { printf 'FROM scratch AS build\nCOPY *.deb /package/\n\n'; sed '0,/^$/d' deploy/container/Containerfile; } >"$file"
  grep -q '^FROM debian:12$' "$file" || fail "the second stage of the Containerfile was not found"
  context=$work/context
else
  cp deploy/container/Containerfile "$file"
  context=.
  if [ -f /etc/ssl/certs/ca-certificates.crt ]; then
    sed -i '/^FROM debian:12 AS build$/a ENV PIP_CERT=/certificates.crt' "$file"
    options+=(--volume /etc/ssl/certs/ca-certificates.crt:/certificates.crt:ro)
  fi
  if [ -n "$ccache" ]; then
    sed -i -e '/^FROM debian:12 AS build$/a ENV CCACHE_DIR=/ccache CCACHE_BASEDIR=/src CCACHE_NOHASHDIR=1 CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache' \
      -e 's/--no-install-recommends dpkg-dev/& ccache/' "$file"
    options+=(--volume "$(realpath "$ccache"):/ccache")
  fi
fi
quietly "${buildah[@]}" build "${options[@]}" -f "$file" -t kvlathe "$context"

# What the image says of itself.
"${buildah[@]}" inspect --type image kvlathe >"$work/config.json"
python3 - "$work/config.json" <<'END' || fail "the image's configuration is not that of the Containerfile"
import json, sys
config = json.load(open(sys.argv[1]))["Docker"]["config"]
assert config["User"] == "10001:10001", config["User"]
assert config["Entrypoint"] == ["/usr/bin/kvlathe"], config["Entrypoint"]
assert set(config["Volumes"]) == {"/models", "/cache"}, config["Volumes"]
assert set(config["ExposedPorts"]) == {"8080/tcp"}, config["ExposedPorts"]
json.dump(config["Healthcheck"]["Test"][1:], open(sys.argv[1] + ".health", "w"))
END

container=$("${buildah[@]}" from --pull=never kvlathe)
models=$(realpath models/lathe-nano)
inside() { "${buildah[@]}" run --isolation chroot --volume "$models:/models/lathe-nano:ro" "$container" -- "$@"; }
[[ $(inside kvlathe --version) == "kvlathe "* ]] || fail "kvlathe --version says nothing in the container"
[ "$(inside id -u)" = 10001 ] || fail "the container runs as another user than 10001"
text=$(inside kvlathe run -m /models/lathe-nano --kv 'kivi(bits=4)' -p 'Once upon a time' -n 16 --temp 0 2>"$log") ||
  { cat "$log" >&2; fail "kvlathe run failed in the container"; }
[ -n "$text" ] || fail "kvlathe run wrote no text"

# The server, its health check, and its end. In this isolation the container shares the machine's network: another port.
python3 - "$work" "$container" "$models" "${buildah[@]}" <<'END' || fail "the server or its health check failed in the container"
import json, socket, subprocess, sys, time
work, container, models, *buildah = sys.argv[1:]
probe = socket.socket(); probe.bind(("127.0.0.1", 0)); port = str(probe.getsockname()[1]); probe.close()
run = [*buildah, "run", "--isolation", "chroot", "--volume", f"{models}:/models/lathe-nano:ro", container, "--"]
server = subprocess.Popen([*run, "kvlathe", "serve", "-m", "/models/lathe-nano", "--host", "127.0.0.1", "--port", port, "-t", "1"],
                          stderr=subprocess.DEVNULL)
check = [word.replace("/8080", "/" + port) for word in json.load(open(work + "/config.json.health"))]
try:
    for _ in range(60):
        healthy = subprocess.run([*run, *check], stderr=subprocess.DEVNULL).returncode == 0
        if healthy or server.poll() is not None:
            break
        time.sleep(0.5)
    assert healthy, "not healthy"
finally:
    server.terminate()
    server.wait(timeout=60)
assert subprocess.run([*run, *check], stderr=subprocess.DEVNULL).returncode != 0, "a server that ended is healthy"
END
echo "scripts/container_check.sh: PASSED"
