# SPDX-License-Identifier: Apache-2.0
"""Runs in the VM: starts trainers that no one means well by, and stays as their parent.

    odd_jobs.py PROGRAM

Megabytes of arguments; arguments that are not UTF-8, and full of terminal sequences and line ends;
ranks and sizes in the environment that are no numbers, or absurd ones.
"""

from __future__ import annotations

import os
import subprocess
import sys

program = os.fsencode(sys.argv[1])
python = os.fsencode(sys.executable)
ARGUMENT = b"x" * 120_000  # MAX_ARG_STRLEN is 128 KiB

ODD: list[tuple[list[bytes], dict[bytes, bytes]]] = [
    ([ARGUMENT] * 12, {}),
    ([b"--output_dir", b"\xff\xfe\x80", b"\x1b[2J\x1b]0;owned\x07", b"a\nMESSAGE=b\n"], {}),
    ([], {b"RANK": b"banana", b"LOCAL_RANK": b"-1", b"WORLD_SIZE": b"9" * 400}),
    ([], {b"RANK": b"\xff", b"CUDA_VISIBLE_DEVICES": b"," * 50_000, b"LOCAL_RANK": b"1e9"}),
    ([b"--loaders", b"0"], {b"SWIFT_%d" % n: b"y" * 100_000 for n in range(12)}),
]
children = [
    subprocess.Popen([python, program, *arguments], env={**os.environb, **environment})
    for arguments, environment in ODD
]
for child in children:
    child.wait()
