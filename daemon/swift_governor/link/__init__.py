# SPDX-License-Identifier: Apache-2.0
"""The Unix socket: trainers, the sampler, the exporter and people talk to the daemon through it."""
