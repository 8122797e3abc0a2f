# SPDX-License-Identifier: Apache-2.0
"""What the package puts on a node, and that it runs from there."""

from __future__ import annotations

import ast
import gzip
import os
import re
import subprocess
from pathlib import Path

import pynvml
import pytest

from tests.unit.packaging.conftest import REPOSITORY, Deb

HOMES = (
    "/etc/swift-governor/",
    "/usr/bin/swift-governor",
    "/usr/lib/swift-governor/",
    "/usr/lib/systemd/system/",
    "/usr/lib/sysusers.d/swift-governor.conf",
    "/usr/share/doc/swift-governor/",
    "/usr/share/man/man8/",
    "/usr/share/python3/runtime.d/swift-governor.rtupdate",
    "/usr/share/swift-governor/",
)


def programs() -> dict[str, str]:
    """Name → module, from the launcher's own table."""
    tree = ast.parse((REPOSITORY / "packaging/launch.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "PROGRAMS":
            return dict(ast.literal_eval(node.value))
    raise AssertionError("launch.py has no PROGRAMS")


def test_every_file_lies_in_a_place_of_the_packages_own(deb: Deb):
    files = [name for name in deb.names() if not name.endswith("/")]
    strays = [name for name in files if not name.startswith(HOMES)]
    assert files
    assert strays == []


def test_no_test_cache_or_work_file_is_packaged(deb: Deb):
    wrong = re.compile(r"/tests?/|test_|conftest|__pycache__|\.pyc|egg-info|\.orig|~$|/\.")
    assert [name for name in deb.names() if wrong.search(name)] == []


@pytest.mark.parametrize("package", ["swift_governor", "swift_governor_trainer"])
def test_the_whole_package_of_the_repository_is_installed(deb: Deb, package: str):
    wanted = {
        str(path.relative_to(REPOSITORY / "daemon"))
        for path in (REPOSITORY / "daemon" / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    lib = deb.root / "usr/lib/swift-governor"
    there = {str(p.relative_to(lib)) for p in (lib / package).rglob("*") if p.is_file()}
    assert wanted
    assert there == wanted


def test_the_bundled_nvml_bindings_are_the_tested_ones(deb: Deb):
    bundled = deb.root / "usr/lib/swift-governor/pynvml.py"
    assert bundled.read_bytes() == Path(pynvml.__file__).read_bytes()


def test_the_plugin_is_where_the_manual_says_and_finds_its_package(deb: Deb):
    plugin = deb.root / "usr/share/swift-governor/swift_governor_plugin.py"
    assert plugin.is_symlink()
    assert plugin.resolve().parent == deb.root / "usr/lib/swift-governor/swift_governor_trainer"
    assert plugin.resolve().is_file()


def test_each_program_of_the_launcher_is_a_runnable_module(deb: Deb):
    lib = deb.root / "usr/lib/swift-governor"
    for name, module in programs().items():
        path = lib / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), name


def test_each_program_is_a_link_to_the_launcher(deb: Deb):
    lib = deb.root / "usr/lib/swift-governor"
    for name in programs():
        link = deb.root / "usr/bin/swift-governor" if name == "swift-governor" else lib / name
        assert link.is_symlink(), name
        assert link.resolve() == (lib / "launch.py").resolve(), name


def test_the_command_runs_from_where_it_is_installed(deb: Deb):
    done = subprocess.run(
        [deb.root / "usr/bin/swift-governor", "--help"], capture_output=True, text=True, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    assert "status" in done.stdout


def test_what_lies_in_the_callers_folder_or_pythonpath_is_never_imported(deb: Deb, tmp_path: Path):
    for name in ("swift_governor", "runpy", "yaml"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken over')\n")
    done = subprocess.run(
        [deb.root / "usr/bin/swift-governor", "--help"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert "taken over" not in done.stdout + done.stderr
    assert done.returncode == 0, done.stderr


def test_the_launcher_under_another_name_says_which_names_it_has(deb: Deb):
    done = subprocess.run(
        [deb.root / "usr/lib/swift-governor/launch.py"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "swift-governord" in done.stderr


def test_the_configuration_is_the_admins_and_nothing_else_is(deb: Deb):
    etc = REPOSITORY / "etc"
    files = sorted(f"/etc/{p.relative_to(etc)}" for p in etc.rglob("*") if p.is_file())
    assert "/etc/swift-governor/config.yaml" in files
    assert sorted((deb.control / "conffiles").read_text().split()) == files
    for name in files:
        assert (deb.root / name[1:]).read_bytes() == (REPOSITORY / name[1:]).read_bytes()


def test_nothing_is_writable_by_others_and_all_belongs_to_root(deb: Deb):
    listing = subprocess.run(["dpkg-deb", "-c", deb.path], check=True, capture_output=True)
    for line in listing.stdout.decode().splitlines():
        mode, owner = line.split()[:2]
        assert owner == "root/root", line
        assert mode[0] == "l" or (mode[5] == "-" and mode[8] == "-"), line
        assert "s" not in mode, line


def test_the_version_has_one_home(deb: Deb):
    home = REPOSITORY / "daemon/swift_governor/version.py"
    version = re.search(r'VERSION = "(.+)"', home.read_text())
    assert version is not None
    fields = subprocess.run(
        ["dpkg-deb", "-f", deb.path, "Version"], check=True, capture_output=True, text=True
    )
    assert fields.stdout.strip() == f"{version[1]}-1"
    # The two changelogs tell versions too, being history; their newest entry is this one.
    debian = (REPOSITORY / "packaging/changelog.Debian").read_text()
    assert debian.startswith(f"swift-governor ({version[1]}-1) ")
    history = (REPOSITORY / "CHANGELOG.md").read_text()
    newest = re.search(r"^## (\S+)", history, re.MULTILINE)
    assert newest is not None
    assert newest[1] == version[1]
    others = ["pyproject.toml", "Makefile", *(f"packaging/{n}" for n in ("nfpm.yaml", "stage.sh"))]
    for name in others:
        text = (REPOSITORY / name).read_text()
        assert f'"{version[1]}"' not in text, name
        assert f"-{version[1]}" not in text, name


def test_the_man_page_is_of_this_version_and_names_only_commands_that_exist(deb: Deb):
    page = gzip.decompress((deb.root / "usr/share/man/man8/swift-governor.8.gz").read_bytes())
    assert b"@VERSION@" not in page
    help_text = subprocess.run(
        [deb.root / "usr/bin/swift-governor", "--help"], capture_output=True, text=True
    ).stdout
    for command in re.findall(r"^\.B swift-governor (\S+)", page.decode(), re.MULTILINE):
        assert command.replace("\\-", "-") in help_text


def test_two_builds_with_one_time_stamp_are_the_same_bytes(deb: Deb, tmp_path: Path):
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    environ["SOURCE_DATE_EPOCH"] = "1767225600"
    built = []
    for name in ("one", "two"):
        path = tmp_path / name / "swift-governor.deb"
        subprocess.run(
            ["make", "-s", str(path), f"DEB={path}", f"STAGE={tmp_path / name / 'stage'}"],
            cwd=REPOSITORY,
            env=environ,
            check=True,
        )
        built.append(path.read_bytes())
    assert built[0] == built[1]
