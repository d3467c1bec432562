#!/usr/bin/env python3
"""Tries an installed wheel, where nothing but it and NumPy is: scripts/wheel.sh calls it.

The folder that it runs in has README.md, lathe-nano in models/, and the folders python of examples and tests as
examples/ and tests/. What fails is said, and the exit status is 1.
"""
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path.cwd()
SITE = pathlib.Path(sys.prefix) / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
PROGRAM = pathlib.Path(sys.prefix) / "bin/kvlathe"
MODEL = HERE / "models/lathe-nano"
MAX_IMPORT_SECONDS = 0.3
# Of what PEP 600 says that every Linux has. All else has to be in the wheel.
OF_EVERY_SYSTEM = {"ld-linux-x86-64.so.2", "libc.so.6", "libdl.so.2", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0",
                   "libresolv.so.2", "librt.so.1", "libstdc++.so.6", "libz.so.1"}


class Failed(Exception):
    """The wheel is not as it should be."""


def output_of(*command: str | os.PathLike[str], **environment: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=300)
    if done.returncode != 0:
        raise Failed(f"{' '.join(str(word) for word in command)}\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def python(program: str, **environment: str) -> str:
    return output_of(sys.executable, "-B", "-c", program, **environment)


def check_place() -> str:
    place = python("import kvlathe; print(kvlathe.__file__)").strip()
    if not place.startswith(str(SITE)):
        raise Failed(f"kvlathe is {place}, and not in {SITE}")
    return place


def check_import_time() -> str:
    program = "import time; t = time.perf_counter(); import kvlathe; print(time.perf_counter() - t)"
    seconds = sorted(float(python(program)) for _ in range(7))
    # The first has the files to read from disk; others may have the processors.
    if seconds[0] > MAX_IMPORT_SECONDS:
        raise Failed(f"import takes {seconds[0]:.3f} s, which is more than {MAX_IMPORT_SECONDS} s")
    return f"{seconds[0]:.3f} s, median {statistics.median(seconds):.3f} s of {len(seconds)}"


def check_libraries() -> str:
    """What the loader maps for the module and the program lies in the wheel, or is of every system."""
    folder = SITE / "kvlathe.libs"
    mapped = python("import kvlathe; print(open('/proc/self/maps').read())")
    found = set(re.findall(r"(/\S+\.so\S*)", mapped)) | set(re.findall(r"=> (/\S+)", output_of("ldd", SITE / "kvlathe/bin/kvlathe")))
    if "not found" in output_of("ldd", SITE / "kvlathe/bin/kvlathe"):
        raise Failed("a library of the program is not there")
    # Of the interpreter: what it has mapped without the module.
    without = set(re.findall(r"(/\S+\.so\S*)", python("print(open('/proc/self/maps').read())")))
    stdlib = str(pathlib.Path(os.__file__).parent)
    for file in sorted(found - without):
        path = pathlib.Path(file)
        if SITE in path.parents or path.name in OF_EVERY_SYSTEM or file.startswith(stdlib):
            continue
        raise Failed(f"{file} is used, and not in the wheel")
    return f"{len(list(folder.iterdir()))} libraries in kvlathe.libs"


def check_program() -> str:
    if f"kvlathe {python('import kvlathe; print(kvlathe.__version__)').strip()}" not in output_of(PROGRAM, "--version"):
        raise Failed("the program and the module have different versions")
    said = output_of(PROGRAM, "run", "-m", MODEL, "-p", "Once upon a time", "-n", "8", "--kv", "lathe(ratio=4)")
    output_of(sys.executable, "-m", "kvlathe", "--help")
    return repr(said[-40:])


def check_instruction_sets() -> str:
    best = python("from kvlathe import _native; print(_native.instruction_set())").strip()
    for isa in ("scalar", "avx2"):
        said = python("from kvlathe import _native; print(_native.instruction_set())", KVLATHE_ISA=isa).strip()
        if said != isa:
            raise Failed(f"KVLATHE_ISA={isa} gives {said}")
        python(f"import kvlathe; kvlathe.LLM({str(MODEL)!r}, kv='lathe(ratio=4)', quiet=True).generate('Once')", KVLATHE_ISA=isa)
    return f"scalar, avx2 and {best}"


def check_readme() -> str:
    """Its lines of Python, with the model that they name."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?:^    .*\n|^\n)*^    import kvlathe\n(?:^    .*\n|^\n)*", text, re.MULTILINE)
    if not blocks:
        raise Failed("README.md has no lines of Python")
    shutil.copytree(MODEL, HERE / "model.gguf", dirs_exist_ok=True)
    for block in blocks:
        python(re.sub(r"^    ", "", block, flags=re.MULTILINE))
    return f"{len(blocks)} of them"


def check_scripts(folder: str, pattern: str) -> str:
    names = sorted((HERE / folder).glob(pattern))
    if not names:
        raise Failed(f"no {pattern} in {folder}")
    for name in names:
        output_of(sys.executable, "-B", name, *((PROGRAM, MODEL) if folder == "tests" else (MODEL,)))
    return ", ".join(name.name for name in names)


CHECKS = {
    "where it is": check_place,
    "import": check_import_time,
    "libraries": check_libraries,
    "the program": check_program,
    "instruction sets": check_instruction_sets,
    "README": check_readme,
    "examples": lambda: check_scripts("examples", "*.py"),
    "tests": lambda: check_scripts("tests", "smoke_test.py"),
}


def main() -> None:
    failures = 0
    print(f"Python {sys.version.split()[0]}")
    for name, check in CHECKS.items():
        start = time.monotonic()
        try:
            print(f"  {name}: {check()} ({time.monotonic() - start:.1f} s)")
        except (Failed, subprocess.TimeoutExpired) as error:
            print(f"  {name}: FAILED: {error}")
            failures += 1
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
