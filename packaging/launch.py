#!/usr/bin/python3 -Iu
# SPDX-License-Identifier: Apache-2.0
"""Starts the program that this file is called as, from the package's private code.

Installed once as /usr/lib/swift-governor/launch.py with one link a program. ``-I`` keeps what the
caller's environment or working directory holds out of a root program: PYTHONPATH, user site, ".".
"""

import os
import runpy
import sys

PROGRAMS = {
    "swift-governor": "swift_governor.cli",
    "swift-governord": "swift_governor.loop",
    "swift-governor-sampler": "swift_governor.sampler",
    "swift-governor-exporter": "swift_governor.exporter",
    "swift-governor-release": "swift_governor.act.release",
}

if __name__ == "__main__":
    name = os.path.basename(sys.argv[0])  # noqa: PTH119 - pathlib costs 10 ms of each start
    if name not in PROGRAMS:
        sys.exit(f"{sys.argv[0]}: call it by one of its names: {', '.join(PROGRAMS)}")
    sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120
    runpy.run_module(PROGRAMS[name], run_name="__main__", alter_sys=True)
