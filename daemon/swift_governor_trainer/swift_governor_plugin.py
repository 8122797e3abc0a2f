# SPDX-License-Identifier: Apache-2.0
"""For ms-swift: ``--external_plugins /usr/share/swift-governor/swift_governor_plugin.py``.

Links the training to the governor of this node, if there is one; whatever is missing, training goes
on. A second ``--external_plugins`` replaces the first: give several files to one.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from pathlib import Path

INSTALLED = Path("/usr/lib/swift-governor")


def _find_package() -> None:
    """Puts the package's folder last on sys.path, so that it hides nothing of the environment's."""
    if importlib.util.find_spec("swift_governor_trainer") is not None:
        return
    for folder in (Path(__file__).resolve().parent.parent, INSTALLED):
        if (folder / "swift_governor_trainer" / "attach.py").is_file():
            sys.path.append(str(folder))
            return


try:
    _find_package()
    from swift_governor_trainer.attach import install

    install()
except Exception as error:  # noqa: BLE001
    # A plugin that raises ends the training before it began.
    logging.getLogger("swift").warning(
        "[swift-governor] this run stays ungoverned: %s: %s", type(error).__name__, error
    )
