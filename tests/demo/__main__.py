# SPDX-License-Identifier: Apache-2.0
"""The story, step by step; the exit status is 0 only when everything it shows held.

``--disconnect-actuator`` breaks the installed daemon so that it never writes a quota: then the run
must fail, which proves that a good run proves something.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import time
from pathlib import Path

from tests.demo import look, stage
from tests.demo.picture import BLUE, GREEN, GREY, ORANGE, Event, Panel, Points, svg
from tests.demo.screen import Screen
from tests.node.vm import Vm, VmError
from tests.node.vm.host import CACHE, LOG

BURN_MS = 80
BAND = (0.53, 0.67)
WINDOW_S = 20
MISSING = """
_with_quota = properties_of


def properties_of(limits):
    return {k: v for k, v in _with_quota(limits).items() if k != "CPUQuotaPerSecUSec"}
"""


class Demo:
    """One run. Each step says what it waits for, and has a deadline."""

    def __init__(self, vm: Vm, screen: Screen, disconnected: bool) -> None:
        self.vm = vm
        self.screen = screen
        self.disconnected = disconnected
        self.job = ""
        self.scope = ""
        self.utilization = 0.0
        self._told = 0
        self._begun = self.ended = 0.0
        self._events: list[Event] = []

    def run(self) -> None:
        """Everything in order."""
        self.install()
        self.start()
        self.train()
        self.contained()
        self.micro_batch()
        if self.regulated():
            self.by_hand()
            self.stopped()

    # --------------------------------------------------------------------------------- steps

    def install(self) -> None:
        """The package, with apt, from the file that `make deb` built."""
        vm, screen = self.vm, self.screen
        screen.title("Install the package")
        vm.put(stage.the_package(), "/root/swift-governor.deb")
        screen.see("# apt-get install ./swift-governor.deb")
        out = vm.run(["apt-get", "install", "-y", "-q", "/root/swift-governor.deb"], 300).stdout
        screen.see("\n".join(out.splitlines()[-3:]))
        state = vm.run(["systemctl", "is-active", "swift-governor"], check=False).stdout.strip()
        screen.check(state == "inactive", f"installing started nothing (swift-governor: {state})")
        stage.put_simulated_gpu(vm)
        screen.see("SIMULATED: the GPU. A stand-in libnvidia-ml.so.1 under the real nvidia-ml-py;")
        screen.see("           it is busy exactly while the trainer computes. All else is real.")
        vm.put(stage.GUEST / "50-demo.yaml", "/etc/swift-governor/config.d/50-demo.yaml")
        if self.disconnected:
            path = "/usr/lib/swift-governor/swift_governor/act/limits.py"
            vm.run(["sh", "-c", f"cat >>{path}"], stdin=MISSING)
            screen.see("DISCONNECTED: this daemon never writes a CPU quota; the demo must fail.")

    def start(self) -> None:
        """The three programs, and a real Prometheus."""
        vm, screen = self.vm, self.screen
        screen.title("Start it")
        screen.see("# systemctl start swift-governor")
        vm.run(["systemctl", "start", "swift-governor"], 120)
        units = ["swift-governor", "swift-governor-sampler", "swift-governor-exporter"]
        screen.wait("the three programs to be active")
        vm.wait_for("the three programs", ["systemctl", "is-active", *units], 60)
        screen.check(True, "active: " + ", ".join(units))
        vm.put(stage.GUEST / "prometheus.yml", "/etc/prometheus/prometheus.yml")
        vm.run(["systemctl", "start", "prometheus"], 60)
        screen.wait("Prometheus to have scraped it")
        vm.wait_for("a scrape", lambda: look.one(vm, "swift_governor_up") == 1.0, 120)
        screen.check(True, "Prometheus (Debian's package) scrapes it")

    def train(self) -> None:
        """A real swift sft by another user."""
        vm, screen = self.vm, self.screen
        screen.title("A user starts to train")
        stage.put_training(vm)
        screen.see("alice$ swift sft --model tiny … --dataloader_num_workers 2")
        screen.see(f"(4 rows x 2 a step; each row costs its loader {BURN_MS} ms of CPU)")
        environment = [
            f"BURN_MS={BURN_MS}",
            "FAKE_NVML_ACTIVITY=/run/fake-nvml/gpu0",
            "FAKE_NVML_WRITER=/demo/activity.py",
            f"GPU_MEMORY_MIB={20 * 1024}",
            f"GPU_MEMORY_KIB_PER_TOKEN={260 * 1024}",
        ]
        # In a session of its own, as a login would: not in a *.service, which would be left alone.
        line = f"setsid runuser -u alice -- env {' '.join(environment)} /demo/train.sh"
        vm.sh(f"nohup {line} >/demo/train.log 2>&1 </dev/null &")
        screen.wait("the governor to discover it (an exec event of the kernel)")
        vm.wait_for("the job", lambda: look.status(vm)["jobs"], 120)
        job = look.status(vm)["jobs"][0]
        self.job = job["name"]
        self.scope = f"msswift-{self.job}-gpu0.scope"
        screen.check(True, f"discovered as {self.job}: {job['verb']} of {job['user']}")
        screen.wait("ms-swift's imports and its first step (4 minutes where all is emulated)")
        vm.wait_for("the trainer to link", self._linked, 900)
        screen.check(True, "the trainer is linked to the socket")
        self._begun = self._guest_time()

    def _linked(self) -> bool:
        """Asked of the trainer's log, and seldom: each look costs the guest time."""
        time.sleep(4)
        self._follow()
        text = look.trainer_log(self.vm).text
        if self.vm.run(["pgrep", "-u", "alice", "-f", "swift"], check=False).rc != 0:
            raise VmError("the training ended:\n" + "\n".join(text.splitlines()[-12:]))
        return "linked to the governor" in text and look.step(self.vm) > 3

    def contained(self) -> None:
        """Where its processes are, as systemd and the kernel show it."""
        vm, screen = self.vm, self.screen
        screen.title("Contained")
        argv = ["systemd-cgls", "--no-pager", "--xattr=no", "-u", "msswift.slice"]
        screen.see("# " + " ".join(argv))
        screen.see("\n".join(line[:100] for line in vm.run(argv).stdout.splitlines()))
        loaders = look.cgroup_file(vm, self.scope, "cgroup.procs").split()
        screen.check(len(loaders) == 2, f"two loader processes in {self.scope}")
        main = look.cgroup_file(vm, f"msswift-{self.job}-main.scope", "cgroup.procs").split()
        screen.check(len(main) >= 2, f"launcher and rank in msswift-{self.job}-main.scope")
        nices = vm.run(["ps", "-L", "-o", "ni=", "-p", ",".join(loaders + main)]).stdout.split()
        screen.check(set(nices) == {"15"}, f"all {len(nices)} threads at nice 15")

    def regulated(self) -> bool:
        """The loop moves the loaders' quota until utilisation is in its band; whether it is."""
        screen = self.screen
        screen.title("The GPU's loop")
        screen.wait(f"utilisation to be {BAND[0]:.0%}-{BAND[1]:.0%} (mean of two windows)")
        held = self._until_in_band(420)
        if not screen.check(held, f"GPU 0 in its band: {self.utilization:.0%}"):
            return False
        quota = look.cores(look.cgroup_file(self.vm, self.scope, "cpu.max"))
        shown = look.cgroup_file(self.vm, self.scope, "cpu.max")
        screen.see(f"# cat /sys/fs/cgroup/msswift.slice/…/{self.scope}/cpu.max\n{shown}")
        told = look.one(self.vm, f'swift_governor_unit_cpu_quota_cores{{unit="{self.scope}"}}')
        same = quota is not None and told == quota
        return screen.check(same, f"Prometheus tells the same: {told} cores")

    def micro_batch(self) -> None:
        """The simulated memory is too full at micro-batch 4: the governor asks for 2."""
        vm, screen = self.vm, self.screen
        screen.title("The micro-batch")
        screen.wait("the trainer's own log to tell of the change")
        vm.wait_for("the change", lambda: self._changed_line(), 240)
        screen.see(f"train.log: {self._changed_line()}")
        screen.check(
            "4 -> 2" in self._changed_line(), "4 -> 2 at an optimizer step, in its own log"
        )
        told = "swift_governor_job_micro_batch_size"
        screen.wait("Prometheus to tell of it")
        vm.wait_for("the new size in Prometheus", lambda: look.one(vm, told) == 2.0, 60)
        screen.check(True, f"Prometheus: {told} 2")

    def _changed_line(self) -> str:
        lines = [
            n for n in look.trainer_log(self.vm).governor_lines if "micro-batch" in n and "->" in n
        ]
        return lines[-1] if lines else ""

    def by_hand(self) -> None:
        """Half the quota by hand: throughput follows in proportion; the loop brings it back."""
        vm, screen = self.vm, self.screen
        screen.title("Half the quota by hand, then the loop again")
        self._until_in_band(300)
        quota = look.cores(look.cgroup_file(vm, self.scope, "cpu.max")) or 0.0
        before = look.samples_per_s(vm, 30)
        argv = ["swift-governor", "set", "gpu", "0", "--quota", f"{quota / 2:.2f}"]
        screen.see(f"# {' '.join(argv)}\n{vm.run(argv).stdout}")
        self._events.append(Event(self._guest_time(), "halved by hand"))
        time.sleep(15)
        after = look.samples_per_s(vm, 40)
        ratio = after / before if before else 0.0
        screen.check(
            0.35 < ratio < 0.68, f"samples/s {before:.1f} -> {after:.1f}: {ratio:.2f} of before"
        )
        argv = ["swift-governor", "set", "gpu", "0", "--auto"]
        screen.see(f"# {' '.join(argv)}\n{vm.run(argv).stdout}")
        self._events.append(Event(self._guest_time(), "loop on again"))
        screen.wait("utilisation to come back into its band")
        screen.check(self._until_in_band(420), f"back in its band: {self.utilization:.0%}")
        screen.see("\n" + vm.run(["swift-governor", "status"]).stdout)

    def stopped(self) -> None:
        """Stop gives everything back, and the job trains on."""
        vm, screen = self.vm, self.screen
        screen.title("Stop it: everything is given back, the job trains on")
        self.ended = self._guest_time()
        screen.see("# systemctl stop swift-governor")
        vm.run(["systemctl", "stop", "swift-governor"], 120)
        screen.see(vm.run(["sh", "-c", "journalctl -u swift-governor -o cat | tail -n 3"]).stdout)
        limits = vm.sh(
            "find /sys/fs/cgroup/msswift.slice -name cpu.max -exec cat {} + | sort | uniq -c; "
            "find /sys/fs/cgroup/msswift.slice -name cpu.weight -exec cat {} + | sort | uniq -c"
        ).stdout
        kept = [line.split(None, 1)[1] for line in limits.splitlines()]
        screen.check(set(kept) == {"max 100000", "100"}, f"limits in the kernel: {', '.join(kept)}")
        nices = set(vm.sh("ps -L -u alice -o ni=").stdout.split())
        screen.check(nices == {"0"}, f"nice of its threads: {', '.join(sorted(nices))}")
        rate = look.samples_per_s(vm, 15)
        screen.check(rate > 0, f"still training: {rate:.1f} samples/s")

    def picture(self) -> str:
        """The run from the trainer's link to the stop, as Prometheus recorded it."""
        begin, end = self._begun, self.ended
        past = [
            look.history(self.vm, expression, begin, end)
            for expression in (
                f"avg_over_time(swift_governor_gpu_utilization_ratio[{2 * WINDOW_S}s])",
                f'swift_governor_unit_cpu_quota_cores{{unit="{self.scope}"}}',
                "swift_governor_job_micro_batch_size",
                f"avg_over_time(swift_governor_job_samples_per_second[{WINDOW_S}s])",
            )
        ]
        utilization, quota, size, rate = past
        panels = [
            Panel("utilisation", utilization, 1.0, BLUE, "of the (simulated) GPU", BAND),
            Panel("quota", quota, highest(quota), ORANGE, "cores", steps=True),
            Panel("micro-batch", size, 4.0, GREEN, "rows", steps=True),
            Panel("throughput", rate, 4 * highest(rate, 4.0), GREY, "samples/s"),
        ]
        title = "One real swift sft under swift-governor"
        return svg(title, panels, self._events)

    # ------------------------------------------------------------------------------- looking

    def _guest_time(self) -> float:
        return float(self.vm.run(["date", "+%s"]).stdout)

    def _until_in_band(self, timeout_s: float) -> bool:
        """The mean of two windows in a row within the band, by the trainer's own counter."""
        deadline, last = time.monotonic() + timeout_s, 0.0
        while time.monotonic() < deadline:
            busy = look.busy_share(self.vm, WINDOW_S)
            self._follow()
            self.utilization = (busy + last) / 2
            if last and BAND[0] <= self.utilization <= BAND[1]:
                return True
            last = busy
        return False

    def _follow(self) -> None:
        """New lines of the governor's journal since the last look."""
        out = self.vm.run(
            ["journalctl", "-o", "cat", "-t", "swift-governor", "--no-pager", "-q"], check=False
        ).stdout.splitlines()
        for line in out[self._told :]:
            self.screen.see(f"journal: {line}")
        self._told = len(out)


def highest(points: Points, unit: float = 1.0) -> float:
    """The top of an axis: the next half unit above the highest point, in units."""
    return math.ceil(2 * max(v for _, v in points) / unit) / 2


def main() -> int:
    """Parses the command line, boots, runs, and says what was shown."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--disconnect-actuator", action="store_true")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the run as an SVG")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="         %(message)s", stream=sys.stdout)
    # The demo says itself what it waits for; what is built and booted is for the harness to say.
    LOG.addFilter(lambda record: not record.getMessage().startswith("waiting for "))
    screen = Screen()
    screen.title("A node: Debian 12 in QEMU, two cores, real systemd and cgroup v2")
    LOG.setLevel(logging.INFO)
    try:
        screen.wait("its disks (built once, then kept)")
        disks = stage.disks()
        screen.wait("it to boot")
        with Vm.boot("bookworm", disks=disks, memory_mib=5120) as vm:
            screen.check(True, f"booted ({vm.accelerator})")
            try:
                demo = Demo(vm, screen, args.disconnect_actuator)
                demo.run()
                if args.picture and demo.ended:
                    args.picture.write_text(demo.picture(), encoding="utf-8")
            except BaseException:
                vm.collect(CACHE / "failures" / "demo")
                screen.see(f"journal, console and more: {CACHE / 'failures' / 'demo'}")
                vm.get("/demo/train.log", CACHE / "failures" / "demo" / "train.log")
                raise
    except VmError as error:
        screen.check(False, str(error))
    return screen.verdict()


if __name__ == "__main__":
    sys.exit(main())
