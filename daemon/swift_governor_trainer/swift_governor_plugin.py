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

NAME = "swift_governor_trainer"
# In the source tree this file lies within the package; installed it is a link to there.
PLACES = (Path(__file__).resolve().parent, Path("/usr/lib/swift-governor") / NAME)


def _load_package() -> None:
    """Loads the package from where it lies. sys.path stays as it is: the folder beside holds
    other modules, which the environment must not find.
    """
    if importlib.util.find_spec(NAME) is not None:
        return
    for folder in PLACES:
        spec = importlib.util.spec_from_file_location(
            NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        if (folder / "attach.py").is_file() and spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            sys.modules[NAME] = module
            spec.loader.exec_module(module)
            return
    raise ImportError(f"{NAME} is at none of {', '.join(map(str, PLACES))}")


try:
    _load_package()
    from swift_governor_trainer.attach import install

    install()
except Exception as error:  # noqa: BLE001
    # A plugin that raises ends the training before it began.
    logging.getLogger("swift").warning(
        "[swift-governor] this run stays ungoverned: %s: %s", type(error).__name__, error
    )
