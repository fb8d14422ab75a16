"""`python -m flashlab …`: the packaged command line."""

import os
import sys

from flashlab._command import environment, executable


def main() -> None:
    try:
        program = executable()
    except RuntimeError as error:
        sys.exit(f"flashlab: {error}")
    variables = environment()
    # `compare --peers torch` starts python3: this one, unless --python names another.
    variables["PATH"] = os.pathsep.join(
        [os.path.dirname(sys.executable), variables.get("PATH", os.defpath)])
    os.execve(program, [program, *sys.argv[1:]], variables)


if __name__ == "__main__":
    main()
