# SPDX-License-Identifier: Apache-2.0
"""What the tests of the senses share."""

from __future__ import annotations

import pytest

from tests.unit.sense.live import Senses, SwiftTree


@pytest.fixture
def tree(tmp_path):
    tree = SwiftTree(tmp_path)
    yield tree
    tree.end()


@pytest.fixture(params=["events", "polling"])
def senses(request, tree):
    """Both ways of noticing; each sees the same in the end."""
    senses = Senses(tree, with_events=request.param == "events")
    if request.param == "events" and senses.events is None:
        senses.close()
        pytest.skip("this machine has no proc connector to use")
    yield senses
    senses.close()
