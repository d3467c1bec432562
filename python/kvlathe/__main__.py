"""The program `kvlathe`, which the wheel has beside the module: `python -m kvlathe` and the command `kvlathe`."""

import os
import pathlib
import sys

from kvlathe._certificates import certificate_file


def main() -> None:
    """Become the program, with the arguments of this process."""
    program = pathlib.Path(__file__).parent / "bin/kvlathe"
    if not program.exists():
        sys.exit(f"kvlathe: the program is not in this package ({program}); build it with CMake, as README.md says")
    certificates = certificate_file()
    if certificates is not None:
        os.environ["SSL_CERT_FILE"] = certificates
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    main()
