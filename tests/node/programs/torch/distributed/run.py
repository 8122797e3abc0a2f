# SPDX-License-Identifier: Apache-2.0
"""Stands in for torchrun in the VM: starts the ranks, each in a session of its own, and waits.

python3 -m torch.distributed.run --nproc_per_node N PROGRAM ARGUMENT…
"""

from __future__ import annotations

import os
import subprocess
import sys

_, count, *program = sys.argv[1:]
ranks = [
    subprocess.Popen(
        [sys.executable, *program],
        env={**os.environ, "RANK": str(n), "LOCAL_RANK": str(n), "WORLD_SIZE": count},
        start_new_session=True,
    )
    for n in range(int(count))
]
for rank in ranks:
    rank.wait()
