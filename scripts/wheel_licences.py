#!/usr/bin/env python3
"""Writes the licences of what a repaired wheel bundles into it, as LICENCES_OF_OTHERS.txt of its dist-info/licenses.

    scripts/wheel_licences.py WHEEL.whl

The libraries that auditwheel put into kvlathe.libs are Debian's: their packages, the versions of their sources and their
licences are those of this machine. What is compiled into the module and the program comes behind them.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

TREE = pathlib.Path(__file__).resolve().parent.parent
LIBRARIES = pathlib.Path("/usr/lib/x86_64-linux-gnu")
COMMON = pathlib.Path("/usr/share/common-licenses")
# Of which headers or static parts are compiled in, beside the libraries.
COMPILED_PACKAGES = ("libcli11-dev", "libeigen3-dev", "nlohmann-json3-dev", "libboost1.81-dev", "libboost-context1.81-dev")
COMPILED_SOURCES = (
    ("the engine of chat templates, of llama.cpp", TREE / "build/jinja/LICENSE"),
    ("XGrammar", TREE / "build/xgrammar/LICENSE"),
    ("XGrammar, notice", TREE / "build/xgrammar/NOTICE"),
    ("DLPack, of XGrammar", TREE / "build/xgrammar/3rdparty/dlpack/LICENSE"),
)


def output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def debian_file(grafted: str) -> pathlib.Path:
    """libcurl-02fbea31.so.4.8.0, as auditwheel names it, was libcurl.so.4.8.0."""
    name = re.sub(r"-[0-9a-f]{8}(?=\.)", "", grafted)
    for folder in (LIBRARIES, pathlib.Path("/lib/x86_64-linux-gnu")):
        # The file may be named by a link, which is what was grafted.
        for candidate in (folder / name, *sorted(folder.glob(name + ".*"))):
            if candidate.exists():
                return candidate.resolve()
    sys.exit(f"scripts/wheel_licences.py: {grafted} is no library of this Debian")


def package_of(file: pathlib.Path) -> str:
    """The package that installed a file; /lib is a link to /usr/lib, and dpkg knows either name."""
    for name in (str(file), str(file).removeprefix("/usr")):
        found = subprocess.run(["dpkg", "-S", name], capture_output=True, text=True)
        if found.returncode == 0:
            return found.stdout.split(": ")[0].split(":")[0].split(",")[0]
    sys.exit(f"scripts/wheel_licences.py: no package of this Debian has {file}")


def described(packages: dict[str, list[str]]) -> str:
    """Each package with its libraries, and its licence once for all packages that have the same."""
    by_licence: dict[str, list[str]] = {}
    for package, libraries in sorted(packages.items()):
        source = output_of("dpkg-query", "-W", "-f", "${source:Package} ${source:Version}", package)
        text = pathlib.Path(f"/usr/share/doc/{package}/copyright").read_text(encoding="utf-8", errors="replace")
        libraries_of = f": {', '.join(sorted(libraries))}" if libraries else ""
        by_licence.setdefault(text, []).append(f"{package}{libraries_of} (source package {source} of Debian)")
    return "".join("\n".join(["=" * 100, *names, "=" * 100, "", text, ""]) for text, names in by_licence.items())


def licences_of(libs: list[str]) -> str:
    packages: dict[str, list[str]] = {package: [] for package in COMPILED_PACKAGES}
    for name in libs:
        packages.setdefault(package_of(debian_file(name)), []).append(name)
    import nanobind  # of the environment that builds the wheel

    parts = [
        "What this wheel bundles that is not kvlathe's own, and its licences. The libraries of kvlathe.libs are those of",
        "Debian, unchanged but for their names and where they look for each other; their sources are the source packages",
        "named here, at https://snapshot.debian.org. Each may be replaced by another build of it.",
        "",
        described(packages),
    ]
    sources = [*COMPILED_SOURCES, ("nanobind", next(pathlib.Path(nanobind.__file__).parent.parent.glob("nanobind-*/licenses/LICENSE")))]
    for name, file in sources:
        if file.exists():
            parts += ["=" * 100, name, "=" * 100, "", file.read_text(encoding="utf-8"), ""]
    whole = "\n".join(parts)
    for licence in sorted(set(re.findall(r"/usr/share/common-licenses/([A-Za-z0-9.+-]*[A-Za-z0-9])", whole))):
        if (COMMON / licence).exists():
            parts += ["=" * 100, f"{COMMON}/{licence}", "=" * 100, "", (COMMON / licence).read_text(encoding="utf-8"), ""]
    return "\n".join(parts)


def main() -> None:
    wheel = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        output_of(sys.executable, "-m", "wheel", "unpack", "--dest", folder, str(wheel))
        (tree,) = pathlib.Path(folder).iterdir()
        (info,) = tree.glob("*.dist-info")
        libs = sorted(file.name for file in (tree / "kvlathe.libs").iterdir())
        (info / "licenses/LICENCES_OF_OTHERS.txt").write_text(licences_of(libs), encoding="utf-8")
        output_of(sys.executable, "-m", "wheel", "pack", "--dest-dir", str(wheel.parent), str(tree))


if __name__ == "__main__":
    main()
