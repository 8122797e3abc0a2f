# SPDX-License-Identifier: Apache-2.0
"""The governor's side within an ms-swift training process: standard library only.

torch and transformers are imported where they are used, and nothing of swift_governor is. ms-swift
loads ``swift_governor_plugin.py``, which calls ``attach.install()``.
"""
