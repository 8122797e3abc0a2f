# SPDX-License-Identifier: Apache-2.0
"""Runs in the VM: what the simulated GPU did over SECONDS, from the trainer's own activity file.

    watch_gpu.py ACTIVITY SECONDS [WINDOWS [LOW HIGH HELD]]

Prints a line of JSON for each window: ``busy`` (share of the wall time) and ``rows_per_s``. Given
a band, it ends as soon as the mean share of the last HELD windows is within it. It asks neither
the governor nor NVML. The file's layout is in tests/fake_nvml/activity.py.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from pathlib import Path


def counters(path: Path) -> tuple[int, int, int]:
    """(now, busy ns so far, intervals finished), of one consistent state."""
    while True:
        before = struct.unpack_from("<8sQQQQQQQ", path.read_bytes())
        now = time.monotonic_ns()
        again = struct.unpack_from("<8sQQQQQQQ", path.read_bytes())
        if before == again and before[1] % 2 == 0:
            _, _, _, _, total, since, _, intervals = before
            return now, total + (now - since if since else 0), intervals
        time.sleep(0.001)


def main() -> None:
    path, seconds = Path(sys.argv[1]), float(sys.argv[2])
    windows = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    low, high, held = map(float, sys.argv[4:7]) if len(sys.argv) > 6 else (1.0, 0.0, 1.0)
    shares: list[float] = []
    before = counters(path)
    for _ in range(windows):
        time.sleep(seconds)
        after = counters(path)
        wall_s = (after[0] - before[0]) / 1e9
        told = {
            "busy": round((after[1] - before[1]) / 1e9 / wall_s, 4),
            "rows_per_s": round((after[2] - before[2]) / wall_s, 3),
        }
        print(json.dumps(told), flush=True)
        shares = [*shares, told["busy"]][-int(held) :]
        if len(shares) == held and low <= sum(shares) / held <= high:
            return
        before = after


if __name__ == "__main__":
    main()
