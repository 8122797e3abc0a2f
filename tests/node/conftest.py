# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the node tests: one VM a suite, the package installed in it, evidence of failures.

SWIFT_GOVERNOR_VM_SUITES names the suites (default ``bookworm``; ``bookworm trixie`` is the matrix),
SWIFT_GOVERNOR_DEB the package (default: the newest in dist/). What lacks fails, nothing is skipped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node import governed as governor
from tests.node.governed import Governed
from tests.node.vm import Vm, VmError
from tests.node.vm.host import CACHE

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
SUITES = os.environ.get("SWIFT_GOVERNOR_VM_SUITES", "bookworm").split()
# pytest-timeout counts the fixtures too, and the first test builds and boots.
TEST_TIMEOUT_S = 1800


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test that needs the VM runs once a suite, grouped: one VM lives at a time."""
    if "vm" in metafunc.fixturenames:
        metafunc.parametrize("vm", SUITES, indirect=True, scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs the VM, and give it time to boot where the test does not say how much."""
    for item in items:
        if HERE in item.path.parents and "vm" in getattr(item, "fixturenames", ()):
            item.add_marker("node")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


@pytest.fixture(scope="session")
def vm(request: pytest.FixtureRequest) -> Iterator[Vm]:
    """A booted VM that all tests of a suite share: leave it as you found it."""
    with Vm.boot(request.param) as booted:
        yield booted


@pytest.fixture(scope="session")
def installed_vm(vm: Vm) -> Vm:
    """The VM with the built package installed: from a file, without a network, nothing started."""
    vm.put(the_package(), "/root/swift-governor.deb")
    vm.run(["apt-get", "install", "-y", "/root/swift-governor.deb"], timeout_s=300)
    return vm


@pytest.fixture(scope="module")
def governed(installed_vm: Vm) -> Iterator[Governed]:
    """The installed package and the stand-in jobs; stopped and forgotten after the module."""
    installed_vm.run(["rm", "-rf", governor.HOME])
    installed_vm.put(HERE / "programs", governor.HOME)
    yield Governed(installed_vm)
    installed_vm.run(["rm", "-f", governor.SITE])
    installed_vm.run(["systemctl", "stop", governor.GOVERNOR], timeout_s=governor.PATIENCE_S)
    installed_vm.run(["systemctl", "reset-failed"])


def the_package() -> Path:
    """The .deb to test. Raises VmError that says how to make one."""
    named = os.environ.get("SWIFT_GOVERNOR_DEB")
    built = [Path(named)] if named else list((ROOT / "dist").glob("swift-governor_*.deb"))
    existing = [path for path in built if path.is_file()]
    if not existing:
        raise VmError(f"no package at {named or 'dist/swift-governor_*.deb'}: run `make deb`")
    return max(existing, key=lambda path: path.stat().st_mtime)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """After a failure, save what the VM knows and say where."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()  # type: ignore[attr-defined]
    if report.failed and Vm.running and HERE in item.path.parents:
        # A test may have a VM of its own, booted after the shared one.
        used = [value for value in getattr(item, "funcargs", {}).values() if isinstance(value, Vm)]
        directory = CACHE / "failures" / re.sub(r"[^\w.-]+", "_", item.name)
        (used or Vm.running)[-1].collect(directory)
        report.sections.append(("journal, console and units of the VM", f"{directory}/"))
