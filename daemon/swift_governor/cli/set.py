# SPDX-License-Identifier: Apache-2.0
"""``swift-governor set``: a GPU's loop or a job's micro-batch by hand, until told otherwise.

Exit status: 0 done, 1 refused or not there, 3 no daemon to talk to.
"""

from __future__ import annotations

import argparse
import re
import sys

from swift_governor.cli.failure import failure
from swift_governor.link.client import ERROR, SOCKET_PATH, LinkError, call

NAME = "set"
HELP = "set a GPU's quota or a job's micro-batch by hand"

_CORES = re.compile(r"(\d+(?:\.\d+)?)(?: ?cores?)?")


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``swift-governor set``."""
    parser.epilog = "for root and the group swift-governor; it holds until --auto or a restart"
    parser.add_argument("--socket", default=SOCKET_PATH, help=argparse.SUPPRESS)
    kinds = parser.add_subparsers(dest="kind", metavar="gpu|job", required=True)
    gpu = kinds.add_parser("gpu", help="switch a GPU's loop off with a quota, or on again")
    gpu.add_argument("index", type=int, help="as `swift-governor status` counts them")
    how = gpu.add_mutually_exclusive_group(required=True)
    how.add_argument("--quota", type=_cores, metavar="CORES", help="loop off, this quota instead")
    how.add_argument("--no-quota", action="store_true", help="loop off, and no quota")
    how.add_argument("--auto", action="store_true", help="the loop decides again")
    job = kinds.add_parser("job", help="a job's micro-batch")
    job.add_argument("job", help="the job's name in `swift-governor status`")
    size = job.add_mutually_exclusive_group(required=True)
    size.add_argument("--micro-batch", type=int, metavar="N", help="rows computed at once")
    size.add_argument("--auto", action="store_true", help="the governor decides again")


def run(args: argparse.Namespace) -> int:
    """Does it, and says what changed: old -> new."""
    try:
        print(_gpu(args) if args.kind == "gpu" else _job(args))
    except LinkError as error:
        if error.reason == ERROR:
            told = error.parameters.get("message", error)
            field = error.parameters.get("field")
            print(f"refused: {f'{field}: ' if field else ''}{told}", file=sys.stderr)
            return 1
        print(failure(error, args.socket), file=sys.stderr)
        return 3
    return 0


def _gpu(args: argparse.Namespace) -> str:
    parameters = {"gpu": args.index, "enabled": args.auto, "quota_cores": args.quota}
    old = call("SetLoop", parameters, args.socket)["old_cores"]
    was = "no quota" if old is None else f"{old:g} cores"
    now = "its loop" if args.auto else "no quota" if args.no_quota else f"{args.quota:g} cores"
    return f"GPU {args.index}: {was} -> {now}"


def _job(args: argparse.Namespace) -> str:
    parameters = {"job": args.job, "micro_batch": None if args.auto else args.micro_batch}
    old = call("SetMicroBatch", parameters, args.socket)["old"]
    was = "not linked" if old is None else f"micro-batch {old}"
    now = "as the governor decides" if args.auto else str(args.micro_batch)
    later = "" if old is not None else " (asked as soon as its trainer links)"
    return f"{args.job}: {was} -> {now}{later}"


def _cores(text: str) -> float:
    found = _CORES.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of cores, such as 1.5")
    return float(found.group(1))
