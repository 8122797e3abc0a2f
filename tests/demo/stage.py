# SPDX-License-Identifier: Apache-2.0
"""What the demo puts on its node, and the node's two disks."""

from __future__ import annotations

from pathlib import Path

from tests.node.vm import ExtraDisk, Vm, make_disk_image
from tests.node.vm.host import CACHE

ROOT = Path(__file__).resolve().parents[2]
GUEST = Path(__file__).resolve().parent / "guest"
MS_SWIFT = ROOT / ".cache" / "ms-swift"
FAKE_NVML = ROOT / "tests" / "fake_nvml"
LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
GIB = 1024**3

GPU = f"""count 1
0.uuid GPU-51a11ed0-0000-4000-8000-000000000000
0.name Simulated GPU (80 GiB)
0.memory_total {80 * GIB}
0.memory_used {GIB}
0.temperature 55
0.power_mw 300000
0.power_limit_mw 700000
0.activity /run/fake-nvml/gpu0
"""


def disks() -> list[ExtraDisk]:
    """ms-swift and all it needs, as a read-only disk: the same files as the trainer's tests use."""
    image = make_disk_image(MS_SWIFT / "venv", CACHE / "ms-swift-venv.img")
    return [ExtraDisk(image, "/opt/ms-swift")]


def the_package() -> Path:
    """The newest package that was built."""
    return max((ROOT / "dist").glob("swift-governor_*.deb"), key=lambda p: p.stat().st_mtime)


def put_simulated_gpu(vm: Vm) -> None:
    """The fake driver where the real one would be. The only thing here that is not real."""
    vm.put(FAKE_NVML / "build" / "libnvidia-ml.so.1", LIBRARY)
    vm.sh("install -d -m 1777 /run/fake-nvml")
    vm.write("/run/fake-nvml/state", GPU)


def put_training(vm: Vm) -> None:
    """Model, rows and plugin, for the user alice."""
    vm.sh("install -d -o alice -g alice /demo /demo/home /demo/out")
    vm.put(MS_SWIFT / "tiny", "/demo/tiny")
    vm.put(ROOT / "tests" / "trainer" / "simulated_gpu.py", "/demo/simulated_gpu.py")
    vm.put(FAKE_NVML / "activity.py", "/demo/activity.py")
    vm.put(GUEST / "train.sh", "/demo/train.sh")
    vm.sh("chown -R alice:alice /demo")
