# SPDX-License-Identifier: Apache-2.0
"""The NVML reader, a program of its own: a driver call that hangs costs this process, no other.

It imports neither the model nor any other room of the daemon, to stay small; that its messages have
the fields of ``model.GpuSample`` is a test's business.
"""
