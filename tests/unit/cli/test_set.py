# SPDX-License-Identifier: Apache-2.0
"""``swift-governor set`` where there is nobody to ask."""

from __future__ import annotations

import argparse

from swift_governor.cli import set as command


def test_without_a_governor_it_says_how_to_start_one(tmp_path, capsys):
    parser = argparse.ArgumentParser()
    command.configure(parser)
    socket = str(tmp_path / "none.sock")
    assert command.run(parser.parse_args(["--socket", socket, "gpu", "0", "--auto"])) == 3
    told = capsys.readouterr().err
    assert "systemctl start swift-governor" in told
    assert socket in told
