# SPDX-License-Identifier: Apache-2.0
"""``make demo``: the whole chain once, for real, in a throw-away VM, told as it happens.

Real: Debian, systemd, cgroup v2, the installed .deb, ms-swift's ``swift sft``, Prometheus.
Simulated: the GPU alone (tests/fake_nvml and tests/trainer/simulated_gpu.py).
"""
