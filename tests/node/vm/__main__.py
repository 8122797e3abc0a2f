# SPDX-License-Identifier: Apache-2.0
"""The test VM by hand: ``python -m tests.node.vm {build,boot,shell} [--suite SUITE]``."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from tests.node.vm import SUITES, ExtraDisk, Vm, VmError, build


def main() -> int:
    """Run one subcommand; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.node.vm", description=__doc__)
    parser.add_argument(
        "command",
        choices=COMMANDS,
        help="; ".join(f"{name}: {text}" for name, text in COMMANDS.items()),
    )
    parser.add_argument("--suite", choices=SUITES, default=SUITES[0])
    parser.add_argument("--memory-mib", type=int, default=2048)
    parser.add_argument(
        "--disk",
        type=_disk,
        action="append",
        default=[],
        metavar="IMAGE:MOUNTPOINT",
        help="an ext4 image to mount read-only; can be repeated",
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        if arguments.command == "build":
            print(build(arguments.suite).directory)
            return 0
        with Vm.boot(arguments.suite, arguments.disk, arguments.memory_mib) as vm:
            if arguments.command == "shell":
                return vm.interactive(["bash", "-l"])
            print(vm.run(["systemd-analyze"]).stdout + vm.run(["systemd-analyze", "blame"]).stdout)
            return 0
    except KeyboardInterrupt:
        return 130
    except VmError as error:
        print(error, file=sys.stderr)
        return 1


COMMANDS = {
    "build": "make the image, if the cache lacks it",
    "boot": "boot once and tell where the time went",
    "shell": "boot and give a root shell; the VM ends with it",
}


def _disk(text: str) -> ExtraDisk:
    image, _, mountpoint = text.rpartition(":")
    if not image or not mountpoint.startswith("/"):
        raise argparse.ArgumentTypeError(f"{text!r} is not IMAGE:/MOUNTPOINT")
    return ExtraDisk(Path(image), mountpoint)


if __name__ == "__main__":
    sys.exit(main())
