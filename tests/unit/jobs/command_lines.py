# SPDX-License-Identifier: Apache-2.0
"""Command lines with what they are: the truth that the rules are held against.

The first of each kind were seen with ms-swift 3.12.6 and 4.6.0 (torch 2.13, accelerate 1.15).
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

VENV = "/home/ada/venv"
SITE = f"{VENV}/lib/python3.11/site-packages"
SFT = f"{SITE}/swift/cli/sft.py"
CONDA = "/opt/conda/envs/swift"
OPENSTACK = "/usr/bin/swift"


@dataclass(frozen=True)
class Line:
    """One command line. ``head``: whether its script's head names ms-swift; None where unread."""

    command: str
    role: str | None = None
    verb: str | None = None
    engine: str | None = None
    comm: str | None = None
    exe: str | None = "/usr/bin/python3.11"
    head: bool | None = None
    rule: str | None = None

    @property
    def argv(self) -> list[str]:
        return shlex.split(self.command)


def launcher(command, verb, engine="swift", **more):
    more.setdefault("head", True)
    return Line(command, "launcher", verb, engine, **more)


def rank(command, verb, engine="swift", **more):
    return Line(command, "rank", verb, engine, **more)


def agent(command, verb, engine="swift", **more):
    return Line(command, "agent", verb, engine, **more)


def loader(command, verb, engine="swift", **more):
    return Line(command, "loader", verb, engine, comm="pt_data_worker", **more)


def no(command, rule=None, **more):
    return Line(command, rule=rule, **more)


POSITIVE = [
    # Seen: the console script, by its interpreter.
    launcher(f"{VENV}/bin/python3 {VENV}/bin/swift sft --model q", "sft", comm="swift"),
    launcher(f"{VENV}/bin/python3 {VENV}/bin/swift pt --model q", "pt"),
    launcher(f"{VENV}/bin/python3 {VENV}/bin/swift rlhf --rlhf_type grpo", "rlhf"),
    launcher(f"{VENV}/bin/python3 {VENV}/bin/swift infer --model q", "infer"),
    launcher(f"{VENV}/bin/python3 {VENV}/bin/swift deploy --port 8000", "deploy"),
    launcher(
        f"{VENV}/bin/python3 {VENV}/bin/swift rollout --vllm_tensor_parallel_size 2", "rollout"
    ),
    launcher(f"{VENV}/bin/python3 {VENV}/bin/swift sample --num_return_sequences 4", "sample"),
    launcher(f"{VENV}/bin/python3 {VENV}/bin/swift export --merge_lora true", "export"),
    launcher(f"{VENV}/bin/python3 {VENV}/bin/swift eval --eval_dataset gsm8k", "eval"),
    launcher(f"{VENV}/bin/python3 {VENV}/bin/swift app --model q", "app"),
    launcher(f"{VENV}/bin/python3 {VENV}/bin/swift web-ui", "web-ui"),
    launcher(f"{VENV}/bin/python3 {VENV}/bin/swift web_ui --lang en", "web-ui"),
    launcher(f"{VENV}/bin/python3 {VENV}/bin/swift merge-lora --adapters a", "merge-lora"),
    launcher(f"{VENV}/bin/python3 {VENV}/bin/swift merge_lora --adapters a", "merge-lora"),
    launcher(
        f"{VENV}/bin/python3 {VENV}/bin/megatron sft --load m", "sft", "megatron", comm="megatron"
    ),
    launcher(f"{VENV}/bin/python3 {VENV}/bin/megatron pt --load m", "pt", "megatron"),
    launcher(f"{VENV}/bin/python3 {VENV}/bin/megatron rlhf --rlhf_type dpo", "rlhf", "megatron"),
    launcher(
        f"{VENV}/bin/python3 {VENV}/bin/megatron export --mcore_model m", "export", "megatron"
    ),
    launcher(f"{VENV}/bin/python3 {VENV}/bin/swift sft cfg.yaml", "sft"),
    # Other homes of the console script.
    launcher(
        f"{CONDA}/bin/python {CONDA}/bin/swift sft --model q", "sft", exe=f"{CONDA}/bin/python3.10"
    ),
    launcher(
        "/root/.pyenv/versions/3.12.1/bin/python3.12 /root/.pyenv/versions/3.12.1/bin/swift sft",
        "sft",
        exe="/root/.pyenv/versions/3.12.1/bin/python3.12",
    ),
    launcher("/root/.local/share/uv/tools/ms-swift/bin/python /root/.local/bin/swift sft", "sft"),
    launcher("python venv/bin/swift sft --model q", "sft", head=None),
    launcher("/usr/bin/python3 /usr/bin/swift sft --model q", "sft"),
    launcher("/usr/bin/python3 /usr/bin/swift sft --model q", "sft", head=None),
    launcher("/usr/bin/python3 /usr/bin/swift export --quant_bits 4", "export", head=None),
    launcher("swift sft --model q", "sft", head=None),
    launcher("swift sft --model q", "sft", head=None, exe=None),
    launcher("/home/ada/venv/bin/swift deploy --model q", "deploy", head=None, exe=None),
    launcher("megatron sft --load m", "sft", "megatron", head=None, exe=None),
    launcher("pypy3 /opt/pypy/bin/swift export --model q", "export", exe="/opt/pypy/bin/pypy3.10"),
    # Interpreter options.
    launcher(f"python3 -u {VENV}/bin/swift sft", "sft"),
    launcher(f"python3 -uB {VENV}/bin/swift sft", "sft"),
    launcher(f"python3 -I -S -E -s -O -OO -b -v -q -P {VENV}/bin/swift sft", "sft"),
    launcher(f"python3 -X dev -W ignore {VENV}/bin/swift sft", "sft"),
    launcher(f"python3 -Xdev -Wignore::DeprecationWarning {VENV}/bin/swift sft", "sft"),
    launcher(f"python3 -uX frozen_modules=off {VENV}/bin/swift sft", "sft"),
    launcher(f"python3 --check-hash-based-pycs never {VENV}/bin/swift sft", "sft"),
    launcher(f"python3 -u -- {VENV}/bin/swift sft", "sft"),
    launcher(f"pypy3 --jit off {VENV}/bin/swift eval", "eval", exe="/usr/bin/pypy3"),
    # The main program, by name and by path.
    launcher("python -m swift.cli.main sft --model q", "sft", head=None),
    launcher("python3 -u -m swift.cli.main web-ui", "web-ui", head=None),
    launcher("python3 -mswift.cli.main rlhf", "rlhf", head=None),
    launcher("python -m swift.cli._megatron.main sft --load m", "sft", "megatron", head=None),
    launcher(f"python {SITE}/swift/cli/main.py infer --model q", "infer", head=None),
    launcher(f"python {SITE}/swift/cli/_megatron/main.py pt", "pt", "megatron", head=None),
    # Trainers, by path and by name.
    rank(f"{VENV}/bin/python3 {SFT} --model q", "sft", comm="python3"),
    rank(f"{VENV}/bin/python3 -u {SFT} --model q", "sft"),
    rank(f"python3 -u {SFT} --local_rank=0 --model q", "sft"),
    rank(f"{VENV}/bin/python3 {SITE}/swift/cli/pt.py --model q", "pt"),
    rank(f"{VENV}/bin/python3 {SITE}/swift/cli/rlhf.py --rlhf_type dpo", "rlhf"),
    rank(f"{VENV}/bin/python3 {SITE}/swift/cli/infer.py --model q", "infer"),
    rank(f"{VENV}/bin/python3 {SITE}/swift/cli/deploy.py --model q", "deploy"),
    rank(f"{VENV}/bin/python3 {SITE}/swift/cli/rollout.py --model q", "rollout"),
    rank(f"{VENV}/bin/python3 {SITE}/swift/cli/sample.py --model q", "sample"),
    rank(f"{VENV}/bin/python3 {SITE}/swift/cli/export.py --model q", "export"),
    rank(f"{VENV}/bin/python3 {SITE}/swift/cli/eval.py --model q", "eval"),
    rank(f"{VENV}/bin/python3 {SITE}/swift/cli/app.py --model q", "app"),
    rank(f"{VENV}/bin/python3 {SITE}/swift/cli/web_ui.py", "web-ui"),
    rank(f"{VENV}/bin/python3 {SITE}/swift/cli/merge_lora.py --adapters a", "merge-lora"),
    rank(f"{VENV}/bin/python3 {SITE}/swift/cli/_megatron/sft.py --load m", "sft", "megatron"),
    rank(f"python3 -u {SITE}/swift/cli/_megatron/rlhf.py --load m", "rlhf", "megatron"),
    rank(f"python3 {SITE}/swift/cli/_megatron/export.py", "export", "megatron"),
    rank("python -m swift.cli.sft --model q", "sft"),
    rank("python3 -Bm swift.cli.merge_lora", "merge-lora"),
    rank("python -m swift.cli._megatron.pt", "pt", "megatron"),
    rank("python swift/cli/sft.py --model q", "sft"),
    rank("python ./swift/cli//sft.py --model q", "sft"),
    rank("python examples/../swift/cli/rlhf.py", "rlhf"),
    rank(f"python3 {SFT}", "sft", exe=None),
    rank(f"python3 {SFT}", "sft", exe="/usr/bin/python3.11 (deleted)"),
    rank(f"/usr/bin/python3-dbg {SFT}", "sft", exe="/usr/bin/python3.11-dbg"),
    rank(f"my-trainer {SFT}", "sft"),  # exec -a: argv[0] is whatever the user likes
    rank(f"python3 {SFT}", "sft", comm="pt_main_thread"),
    # Loader workers keep their rank's argv; a map pool does too, and reads as what its argv says.
    loader(f"{VENV}/bin/python3 {SFT} --model q", "sft"),
    loader(f"{VENV}/bin/python3 -u {SITE}/swift/cli/rlhf.py", "rlhf"),
    loader(f"python3 -u {SITE}/swift/cli/_megatron/sft.py", "sft", "megatron"),
    loader("python -m swift.cli.sft --model q", "sft"),
    # Agents.
    agent(
        f"{VENV}/bin/python3 -m torch.distributed.run --nproc_per_node 2 --master_port 29501 {SFT}",
        "sft",
        comm="pt_elastic",
    ),
    agent(f"{VENV}/bin/python3 {VENV}/bin/torchrun --nproc_per_node 2 {SFT} --model q", "sft"),
    agent(f"torchrun --standalone --nproc-per-node=gpu {SFT}", "sft", exe=None),
    agent(
        f"torchrun --nnodes 2 --node_rank 1 --rdzv-backend c10d {SITE}/swift/cli/rlhf.py", "rlhf"
    ),
    agent("torchrun --nproc_per_node 8 -m swift.cli.sft --model q", "sft"),
    agent("torchrun --module --nproc_per_node 8 swift.cli._megatron.pt", "pt", "megatron"),
    agent(f"torchrun --a-flag-of-tomorrow {SFT}", "sft"),
    agent(f"python -m torch.distributed.launch --use_env --nproc_per_node 4 {SFT}", "sft"),
    agent(f"python {SITE}/torch/distributed/run.py --nproc_per_node 2 {SFT}", "sft"),
    agent(
        f"python3 -m torch.distributed.run --nproc_per_node 2 {SITE}/swift/cli/_megatron/sft.py",
        "sft",
        "megatron",
    ),
    agent(
        f"{VENV}/bin/python3 {VENV}/bin/accelerate launch --multi_gpu --num_processes 2 {SFT}",
        "sft",
    ),
    agent(f"accelerate launch --config_file fsdp.yaml {SFT} --model q", "sft", exe=None),
    agent("accelerate launch --num_processes 2 -m swift.cli.rlhf --rlhf_type dpo", "rlhf"),
    agent(f"python -m accelerate.commands.launch --use_deepspeed --num_processes=2 {SFT}", "sft"),
    agent(f"python3 {VENV}/bin/accelerate-launch --quiet {SFT}", "sft"),
    agent(f"python3 -m accelerate.commands.accelerate_cli launch {SFT}", "sft"),
    agent(
        f"{VENV}/bin/python3 {VENV}/bin/deepspeed --num_gpus 2 {SFT} --model q",
        "sft",
        comm="deepspeed",
    ),
    agent(
        f"{VENV}/bin/python3 -u -m deepspeed.launcher.launch --world_info=eyJsIjogWzAsIDFdfQ "
        f"--master_addr=127.0.0.1 --master_port=29500 {SFT} --model q",
        "sft",
    ),
    # A console script behind an agent: each rank's launcher hands its environment on.
    agent(f"torchrun --nproc_per_node 2 {VENV}/bin/swift sft --model q", "sft"),
    agent("torchrun --nproc_per_node 2 -m swift.cli.main sft", "sft"),
    agent(f"accelerate launch --num_processes 2 {VENV}/bin/swift sft", "sft"),
    agent(f"torchrun {VENV}/bin/megatron pt --load m", "pt", "megatron"),
    agent("deepspeed --include localhost:0,1 --module swift.cli.sft", "sft", exe=None),
    agent(f"python3 -m deepspeed.launcher.runner --no_local_rank {SITE}/swift/cli/pt.py", "pt"),
]

NEGATIVE = [
    # Apple's swift is a native program.
    no("swift build", "not-python", exe="/usr/bin/swift-build"),
    no("swift test --parallel", "not-python", exe="/opt/swift/usr/bin/swift-test"),
    no("swift run App", "not-python", exe="/usr/bin/swift-run"),
    no("swift package resolve", "not-python", exe="/usr/bin/swift-package"),
    no("/usr/bin/swift build -c release", "not-python", exe="/usr/bin/swift-driver"),
    no("swift build", "foreign-verb", exe=None),
    no("/usr/bin/swift repl", "foreign-verb", exe=None),
    no("swift sft.swift", "foreign-verb", exe=None),
    no("swift", "foreign-verb", exe=None),
    no("swift sft", "not-python", exe="/usr/bin/swift-frontend"),
    no("swift-frontend -c sft.swift", "not-python", exe=None),
    no("sourcekit-lsp", "not-python", exe=None),
    # OpenStack's tools are Python.
    no(f"/usr/bin/python3 {OPENSTACK} upload models big.bin", "foreign-script", head=False),
    no(f"/usr/bin/python3 {OPENSTACK} upload models big.bin", "foreign-verb"),
    no(f"/usr/bin/python3 {OPENSTACK} list", "foreign-verb"),
    no(f"/usr/bin/python3 {OPENSTACK} stat", "foreign-verb"),
    no(f"/usr/bin/python3 {OPENSTACK} download c o", "foreign-verb"),
    no(f"/usr/bin/python3 {OPENSTACK} delete sft", "foreign-verb"),
    no(f"/usr/bin/python3 {OPENSTACK} post sft", "foreign-verb"),
    no(f"/usr/bin/python3 {OPENSTACK} --os-auth-url x sft", "foreign-verb"),
    no(f"/usr/bin/python3 {OPENSTACK} -V 3 upload sft", "foreign-verb"),
    no(f"/usr/bin/python3 {OPENSTACK} sft", "foreign-script", head=False),
    no(f"/usr/bin/python3 {OPENSTACK} export", "foreign-script", head=False),
    no(f"/usr/bin/python3 {OPENSTACK} eval", "foreign-script", head=False),
    no("/usr/bin/python3 /usr/bin/swift-init all start", "other-program"),
    no(
        "/usr/bin/python3 /usr/bin/swift-proxy-server /etc/swift/proxy-server.conf", "other-program"
    ),
    no(
        "/usr/bin/python3 /usr/bin/swift-object-server /etc/swift/object-server.conf",
        "other-program",
    ),
    no("/usr/bin/python3 /usr/bin/swift-ring-builder account.builder rebalance", "other-program"),
    no("/usr/bin/python3 -m swiftclient.shell upload sft", "other-program"),
    no(
        "/usr/bin/python3 /usr/lib/python3/dist-packages/swift/cli/ringbuilder.py x",
        "other-program",
    ),
    no("/usr/bin/python3 -m swift.cli.info", "other-program"),
    no("/usr/bin/python3 /usr/lib/python3/dist-packages/swift/cli/recon.py", "other-program"),
    # People at work on the code, and tools that mention it.
    no(f"vim {SFT}", "not-python", exe="/usr/bin/vim.basic"),
    no("emacs swift.py", "not-python", exe=None),
    no(f"nano {SFT}", "not-python", exe=None),
    no("grep -r swift sft", "not-python", exe="/usr/bin/grep"),
    no("grep swift", "not-python", exe=None),
    no(f"tail -f {SFT}", "not-python", exe="/usr/bin/tail"),
    no("less swift.log", "not-python", exe=None),
    no('bash -c "swift sft --model q"', "not-python", exe="/usr/bin/bash"),
    no('sh -c "swift sft --model q"', "not-python", exe=None),
    no('/bin/sh -c "python3 /x/swift/cli/sft.py"', "not-python", exe="/usr/bin/dash"),
    no("sudo swift sft --model q", "not-python", exe="/usr/bin/sudo"),
    no("timeout 60 swift sft", "not-python", exe="/usr/bin/timeout"),
    no("tmux new-session swift sft", "not-python", exe="/usr/bin/tmux"),
    no("ssh node swift sft", "not-python", exe="/usr/bin/ssh"),
    no("uv run swift sft", "not-python", exe="/usr/bin/uv"),
    no(f"py-spy dump -- python3 {SFT}", "not-python", exe=None),
    no(f"python3 {SFT}", "not-python", exe="/usr/bin/gdb"),
    no(f"perl {VENV}/bin/swift sft", "not-python", exe="/usr/bin/perl"),
    no("pythonista sft", "not-python", exe=None),
    no("ipython3 swift sft", "not-python", exe=None),
    no(f"strace -f python3 {SFT}", "not-python", exe="/usr/bin/strace"),
    no("conda run -n swift swift sft", "not-python", exe=None),
    no(f"python3 {CONDA}/bin/conda run swift sft", "other-program"),
    no("pip install ms-swift", "not-python", exe=None),
    no("python3 /usr/bin/pip install ms-swift", "other-program"),
    no("python3 -m pip install ms-swift", "other-program"),
    no('python3 -c "import swift"', "code-string"),
    no('python3 -c "import swift" swift sft', "code-string"),
    no(f"python3 -c pass {SFT}", "code-string"),
    no(f'python3 -uc "run()" {SFT}', "code-string"),
    no(
        "python3 -c 'from multiprocessing.spawn import main' --multiprocessing-fork",
        "code-string",
        comm="pt_data_worker",
    ),
    no("python3 -m pytest swift/cli/sft.py", "other-program"),
    no(f"python3 {VENV}/bin/pytest tests/swift/cli", "other-program"),
    no("python3 -m jupyter notebook swift.ipynb", "other-program"),
    no(f"python3 {VENV}/bin/jupyter-lab swift sft", "other-program"),
    no(f"python3 train.py --data {SFT}", "other-program"),
    no(f"python3 train.py {SFT}", "other-program"),
    no("python3 train.py swift sft", "other-program"),
    no("python3 -m http.server swift sft", "other-program"),
    no(f"python3 -m pdb {SFT}", "other-program"),
    no("python3 -m mypy swift/cli/sft.py", "other-program"),
    no("python3 swift.py sft", "other-program"),
    no("python3 -m swift sft", "other-program"),
    no("python3 -m swift.cli", "other-program"),
    no("python3 -m swift.cli.main", "foreign-verb"),
    no("python3 -m swift.cli.main build", "foreign-verb"),
    no("python3 -m swift.cli.main --help", "foreign-verb"),
    no("python3 -m swift.cli.utils", "other-program"),
    no("python3 -m myswift.cli.sft", "other-program"),
    no("python3 -m swift.cli.sft.extra", "other-program"),
    no("python3 -m swift.client.sft", "other-program"),
    no(f"python3 {SITE}/myswift/cli/sft.py", "other-program"),
    no(f"python3 {SITE}/swift/client/sft.py", "other-program"),
    no(f"python3 {SITE}/swift/cli/sft.pyc", "other-program"),
    no(f"python3 {SITE}/swift/cli/sft.py.bak", "other-program"),
    no(f"python3 {SITE}/swift/cli/utils.py", "other-program"),
    no(f"python3 {SITE}/swift/cli/_megatron/deploy.py", "other-program"),
    no(f"python3 {SITE}/swift/cli/../llm/sft.py", "other-program"),
    no(f"python3 {VENV}/bin/swift", "foreign-verb", head=True),
    no(f"python3 {VENV}/bin/swift --help", "foreign-verb", head=True),
    no(f"python3 {VENV}/bin/swift --model q sft", "foreign-verb", head=True),
    no(f"python3 {VENV}/bin/swift SFT", "foreign-verb", head=True),
    no(f"python3 {VENV}/bin/megatron deploy", "foreign-verb", head=True),
    no("python3 /opt/tool/megatron sft", "foreign-script", head=False),
    no("python3", "no-program"),
    no("python3 -u", "no-program"),
    no("python3 -", "no-program"),
    no("python3 -m", "no-program"),
    no("python3 -W", "no-program"),
    no("python3 --", "no-program"),
    no("python3 - swift sft", "no-program"),
    no("torchrun --nproc_per_node 2 train.py", "foreign-target"),
    no(f"torchrun --nproc_per_node 2 train.py --data {SFT}", "foreign-target"),
    no(f"torchrun --log-dir {SITE} train.py {SFT}", "foreign-target"),
    no("torchrun -m my.trainer swift.cli.sft", "foreign-target"),
    no("torchrun", "foreign-target", exe=None),
    no("torchrun --help", "foreign-target"),
    no("torchrun /usr/bin/swift upload sft", "foreign-target"),
    no("torchrun my.py swift sft", "foreign-target"),
    no(f"accelerate config {SFT}", "foreign-target"),
    no("accelerate launch train.py", "foreign-target"),
    no(f"deepspeed --num_gpus 2 train.py {SFT}", "foreign-target"),
    no("accelerate env", "foreign-target", exe=None),
    no("ray start --head", "not-python", exe=None),
    no("VLLM::EngineCore", "not-python", exe=None),
    no("VLLM::EngineCore", "no-program"),
]
