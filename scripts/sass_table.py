#!/usr/bin/env python3
"""What the kernels of a GPU became: a table from the machine code (SASS) that nvcc made, and its gate.

No GPU is needed: `cmake --preset cuda` and the target cuda_cubins make the machine code, NVIDIA's nvdisasm reads it.

  sass_table.py show      prints the table
  sass_table.py check     compares it with docs/speed/sass.json: fails where a kernel takes more registers or instructions
                          than is recorded, touches local memory (spills), has lost its products of matrices, takes more
                          instructions a code than its bound, or is not recorded
  sass_table.py record    writes that file anew, and its table in docs/cuda.md

How it counts. The main loop of a kernel is the smallest loop that holds at least half of its products of matrices (HMMA; nine
tenths where there are readers), and without products the loop of most instructions. A loop is what lies between a branch backwards and its target.

The main loop of decoding attention takes a block of 64 entries, and one kernel has a reader for each format, of which a block
runs one for keys and one for values. What nvcc says of lines tells which instruction is whose: the line that calls a reader
(READER below) is among those that it was inlined at. Instructions a code are those of a lane for a block of 64 entries with
CHANNELS channels a side, divided by the codes that are the lane's: the loop over tiles of 16 channels of both readers, as
often as it runs (its products tell how many tiles a pass of it takes), what readers do besides, once, and once all of the main
loop that belongs to no reader and lies in no loop within it: scores, softmax, branches, addresses. What few families ask for
(SELDOM below) is passed over by a branch that all lanes take, and not counted.
"""
import argparse
import json
import re
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs/speed/sass.json"
PAGE = ROOT / "docs/cuda.md"
BEHIND_TABLE = "The bounds are "

# Kernels with readers, and how many groups of 8 rows they compute at once.
WITH_READERS = {"attend.decode: DecodeRows8Kernel": 1, "attend.decode: DecodeRows16Kernel": 2}
READER = re.compile(r"\b(Add\w+)<(?:(\d+), )?kN>\(rows")
SELDOM = re.compile(r"\b(CapScores)\(x\)")
# Products of a reader for a tile: of each group of 8 rows, and of all of them together.
PRODUCTS_OF_TILE = {"AddRowScores": (4, 0), "AddNumberScores": (5, 0), "AddScoresByChannel": (4, 1), "AddUnitScores": (4, 0),
                    "AddRowValues": (4, 0), "AddNumberValues": (4, 0), "AddUnitValues": (4, 0)}
# Readers of keys and of values by format, and the instructions a code that it may take where 8 rows are computed.
FORMATS = {"rows": ("AddRowScores", "AddRowValues", None)}
for n_bits in (8, 4, 3, 2):
    FORMATS[f"uniform {n_bits}"] = (f"AddNumberScores<{n_bits}>", f"AddNumberValues<{n_bits}>", 4)
    FORMATS[f"by channel {n_bits}"] = (f"AddScoresByChannel<{n_bits}>", f"AddNumberValues<{n_bits}>", 4)
for n_bits in (8, 5, 4, 3, 2, 1):
    FORMATS[f"trellis {n_bits}"] = (f"AddUnitScores<{n_bits}>", f"AddUnitValues<{n_bits}>", 7)
CHANNELS = 128
CODES_OF_TILE = 64 * 16 // 32  # a lane's
# Kernels that touch local memory, by how many instructions at most, and why; no other kernel may.
LOCAL_MEMORY = {}
# Registers are given out by eights; instructions shift by a few with every change of a neighbour.
REGISTER_STEP = 8
TOLERANCE = 0.03

SECTION = re.compile(r"^\s*\.section\s+\.text\.([^,]+),")
LABEL = re.compile(r"^(\.L[\w.]+):")
INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
BRANCH_TARGET = re.compile(r"`\((\.L[\w.]+)\)")
REGISTERS = re.compile(r"nvinfo : EIATTR_REGCOUNT\n(?:.*\n)*?.*index@\(([^)]+)\)\n.*\.word\s+(0x[0-9a-f]+)")
PLACE = re.compile(r'"([^"]+)", line (\d+)')
PRODUCT = re.compile(r"^(HMMA|IMMA|QMMA|OMMA|BMMA)\b")
LOCAL = re.compile(r"^(LDL|STL)\b")

# `reader` is that of whose call it is, or the call of what is seldom asked for, or None.
Instruction = namedtuple("Instruction", "address opcode target reader")
Loop = namedtuple("Loop", "first last")  # addresses, both within


class Sources:
    """Lines of sources, wherever they were compiled."""

    def __init__(self, root):
        self.root, self.files = root, {}

    def line(self, path, number):
        _, found, inside = path.rpartition("/src/")
        if not found:
            return ""
        if inside not in self.files:
            file = self.root / "src" / inside
            self.files[inside] = file.read_text().splitlines() if file.is_file() else []
        lines = self.files[inside]
        return lines[number - 1] if number <= len(lines) else ""

    def reader(self, places):
        for path, number in places:
            line = self.line(path, int(number))
            if match := READER.search(line):
                return match[1] + (f"<{match[2]}>" if match[2] else "")
            if match := SELDOM.search(line):
                return match[1]
        return None


def instructions_by_kernel(text, sources=Sources(ROOT)):
    """Of nvdisasm's output, by symbol, with targets of branches as addresses."""
    kernels, labels, waiting = {}, {}, []
    symbol, places, reader = None, [], None
    for line in text.splitlines():
        if match := SECTION.match(line):
            symbol, labels[match[1]], waiting = match[1], {}, []
            kernels[symbol] = []
            places, reader = [], None
        elif "//##" in line:
            places += PLACE.findall(line)
        elif line.lstrip().startswith(".section"):
            symbol = None
        elif symbol is None:
            continue
        elif match := LABEL.match(line):
            waiting.append(match[1])
        elif match := INSTRUCTION.match(line):
            address = int(match[1], 16)
            for label in waiting:
                labels[symbol][label] = address
            waiting = []
            if places:
                places, reader = [], sources.reader(places)
            target = BRANCH_TARGET.search(match[3]) if match[2].startswith("BRA") else None
            kernels[symbol].append(Instruction(address, match[2], target and target[1], reader))
    return {symbol: [i._replace(target=labels[symbol].get(i.target)) for i in instructions]
            for symbol, instructions in kernels.items()}


def loops_of(instructions):
    """All loops, one for each target of a branch backwards. A branch to itself is how a kernel ends, and no loop."""
    last_by_first = {}
    for instruction in instructions:
        if instruction.target is not None and instruction.target < instruction.address:
            last_by_first[instruction.target] = max(last_by_first.get(instruction.target, 0), instruction.address)
    return [Loop(first, last) for first, last in sorted(last_by_first.items())]


def within(instructions, loop):
    return [i for i in instructions if loop.first <= i.address <= loop.last and i.opcode != "NOP"]


def n_products(instructions):
    return sum(bool(PRODUCT.match(i.opcode)) for i in instructions)


def main_loop(instructions, loops, share=1 / 2):
    total = n_products(instructions)
    if total:
        holding = [loop for loop in loops if n_products(within(instructions, loop)) >= share * total]
        return min(holding, key=lambda loop: len(within(instructions, loop)), default=None)
    return max(loops, key=lambda loop: len(within(instructions, loop)), default=None)


def loops_within(loops, loop):
    return [other for other in loops if loop.first <= other.first and other.last <= loop.last and other != loop]


def cost_of_reader(name, body, inner, n_groups):
    """(instructions for a tile, instructions besides) of a reader, None where it has no loop over tiles."""
    own = [loop for loop in inner if all(i.reader == name for i in within(body, loop)) and n_products(within(body, loop))]
    if not own:
        return None
    tiles = min(own, key=lambda loop: len(within(body, loop)))  # the loop over groups of them lies around it
    of_tiles = within(body, tiles)
    of_group, of_all = PRODUCTS_OF_TILE[name.split("<")[0]]
    n_tiles = n_products(of_tiles) / (n_groups * of_group + of_all)
    return len(of_tiles) / n_tiles, sum(i.reader == name for i in body) - len(of_tiles)


def costs_of_formats(body, inner, n_groups):
    """Instructions a code, by format."""
    in_loops = {i.address for loop in inner for i in within(body, loop)}
    rest = sum(i.reader is None and i.address not in in_loops for i in body)
    n_tiles = CHANNELS // 16
    costs = {}
    for name, (keys, values, _) in FORMATS.items():
        sides = [cost_of_reader(reader, body, inner, n_groups) for reader in (keys, values)]
        if all(sides):
            n = rest + sum(n_tiles * of_tile + besides for of_tile, besides in sides)
            costs[name] = round(n / (2 * n_tiles * CODES_OF_TILE), 2)
    return costs


def names_of(symbols):
    """Readable names: without namespaces, parameters and what the compiler adds."""
    shown = subprocess.run(["c++filt"], input="\n".join(symbols), capture_output=True, text=True, check=True).stdout
    names = []
    for name in shown.splitlines():
        name = re.sub(r"\b_GLOBAL__N_\w+::|\(anonymous namespace\)::|kvlathe::(cuda|simt)::|kvlathe::", "", name)
        name = re.sub(r"^void ", "", name)
        name = re.sub(r"\([A-Za-z_][\w:]*\)(?=-?\d)", "", name)  # casts of template arguments
        names.append(re.sub(r"\((?:[^()]|\([^()]*\))*\)$", "", name))
    return names


def row_of(name, instructions, n_registers):
    loops = loops_of(instructions)
    row = {"registers": n_registers, "local": sum(bool(LOCAL.match(i.opcode)) for i in instructions),
           "products": n_products(instructions), "instructions": sum(i.opcode != "NOP" for i in instructions)}
    # What is rarely run lies behind a kernel, and goes back to loops that are none.
    loop = main_loop(instructions, loops, 0.9 if name in WITH_READERS else 1 / 2)
    if loop is not None:
        body, inner = within(instructions, loop), loops_within(loops, loop)
        row["loop"] = len(body)
        if name in WITH_READERS:
            row["a_code"] = costs_of_formats(body, inner, WITH_READERS[name])
    return row


def rows_of(stem, text):
    registers = {symbol: int(n, 16) for symbol, n in REGISTERS.findall(text)}
    kernels = instructions_by_kernel(text)
    return {f"{stem}: {name}": row_of(f"{stem}: {name}", kernels[symbol], registers.get(symbol, 0))
            for symbol, name in zip(kernels, names_of(kernels))}


def table_of(cubins, nvdisasm):
    table = {}
    for cubin in sorted(cubins.glob("*.cubin")):
        ran = subprocess.run([nvdisasm, "-gi", cubin], capture_output=True, text=True)
        if ran.returncode != 0:
            raise SystemExit(f"sass_table.py: {nvdisasm} cannot read {cubin}: {ran.stderr.strip()}")
        table.update(rows_of(cubin.stem, ran.stdout))
    if not table:
        raise SystemExit(f"sass_table.py: no machine code in {cubins}; build the target cuda_cubins "
                         "(cmake --build --preset cuda-check)")
    return table


def problems_of(table, recorded):
    problems = []
    for name, row in table.items():
        if row["local"] > LOCAL_MEMORY.get(name, (0, ""))[0]:
            problems.append(f"{name}: {row['local']} instructions that touch local memory (spills)")
        if WITH_READERS.get(name) == 1:
            problems += [f"{name}: {cost} instructions a code of {entry}, of which {FORMATS[entry][2]} are allowed"
                         for entry, cost in row["a_code"].items() if FORMATS[entry][2] and cost > FORMATS[entry][2]]
        before = recorded.get(name)
        if before is None:
            problems.append(f"{name}: not recorded")
            continue
        if -(-row["registers"] // REGISTER_STEP) > -(-before["registers"] // REGISTER_STEP):
            problems.append(f"{name}: {row['registers']} registers, recorded are {before['registers']}")
        if before["products"] and not row["products"]:
            problems.append(f"{name}: no products of matrices, recorded are {before['products']}")
        for entry, cost in before.get("a_code", {}).items():
            now = row.get("a_code", {}).get(entry)
            if now is None or now > cost * (1 + TOLERANCE):
                problems.append(f"{name}: {now} instructions a code of {entry}, recorded are {cost}")
        for what, shown in (("loop", "instructions in the main loop"), ("instructions", "instructions")):
            if row.get(what, 0) > before.get(what, 0) * (1 + TOLERANCE) + 4:
                problems.append(f"{name}: {row[what]} {shown}, recorded are {before.get(what, 0)}")
    problems += [f"{name}: recorded, but no kernel has this name" for name in recorded if name not in table]
    return problems


def show(table):
    columns = ("registers", "local", "products", "instructions", "loop")
    width = max(map(len, table))
    print(f"{'kernel':<{width}}" + "".join(f"{column:>13}" for column in columns))
    for name, row in table.items():
        print(f"{name:<{width}}" + "".join(f"{row.get(column, ''):>13}" for column in columns))
    for name in WITH_READERS:
        if name in table:
            print(f"\n{name}, instructions a code:")
            for entry, cost in table[name]["a_code"].items():
                print(f"  {entry:<16}{cost:>6}")


def page_table(table):
    """The table of docs/cuda.md: instructions a code by format, for 8 and 16 rows of queries."""
    columns = [table[name]["a_code"] for name in WITH_READERS]
    lines = ["| format | " + " | ".join(f"{8 * n} rows" for n in WITH_READERS.values()) + " |", "|---|---|---|"]
    lines += [f"| {name} | " + " | ".join(str(column.get(name, "")) for column in columns) + " |" for name in FORMATS]
    return "\n".join(lines)


def write_page(table):
    text = PAGE.read_text()
    begin, end = text.index("| format | 8 rows"), text.index(BEHIND_TABLE)
    PAGE.write_text(text[:begin] + page_table(table) + "\n\n" + text[end:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("action", choices=("show", "check", "record"))
    parser.add_argument("--cubins", type=Path, default=ROOT / "build/cuda/cubins")
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--nvdisasm", default=shutil.which("nvdisasm") or str(ROOT / "build/cuda_toolkit/bin/nvdisasm"))
    arguments = parser.parse_args()
    if not shutil.which(arguments.nvdisasm):
        print("sass_table.py: skipped, nvdisasm is not there; scripts/fetch_cuda.sh --disassembler fetches it")
        return 77
    table = table_of(arguments.cubins, arguments.nvdisasm)
    if arguments.action == "show":
        show(table)
    elif arguments.action == "record":
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in table.items())
        arguments.table.write_text("{\n" + lines + "\n}\n")
        if arguments.table == TABLE:
            write_page(table)
        print(f"{arguments.table}: {len(table)} kernels")
    else:
        problems = problems_of(table, json.loads(arguments.table.read_text()))
        print("\n".join(problems), file=sys.stderr)
        print(f"sass_table: {len(table)} kernels, {len(problems)} problems")
        if problems:
            print("What is meant to be so is recorded by scripts/sass_table.py record; the reason belongs into the commit.")
        return int(bool(problems))
    return 0


if __name__ == "__main__":
    sys.exit(main())
