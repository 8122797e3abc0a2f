# SPDX-License-Identifier: Apache-2.0
"""Process trees as ms-swift makes them, and what becomes of them when parents go."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from swift_governor.jobs.grouping import group
from swift_governor.jobs.names import job_name, name_in_cgroup, read_name
from swift_governor.jobs.roles import Registered
from swift_governor.model import Engine, Process, ProcessId, Role

SITE = "/home/ada/venv/lib/python3.11/site-packages"
SFT = f"{SITE}/swift/cli/sft.py"
LAUNCHER = ("venv/bin/python3", "venv/bin/swift", "sft", "--model", "q")
RANK = ("venv/bin/python3", "-u", SFT, "--model", "q")
AGENT = ("python3", "-m", "torch.distributed.run", "--nproc_per_node", "2", SFT, "--model", "q")
PYTHON = "/usr/bin/python3.11"


def process(pid, ppid, argv, comm="python3", exe=PYTHON, **more):
    return Process(
        ProcessId(pid, more.pop("start", pid * 10)),
        ppid,
        more.pop("uid", 1000),
        comm,
        exe,
        tuple(argv),
        more.pop("environ", {}),
        more.pop("cgroup", "/user.slice/session-1.scope"),
        more.pop("head", True),
    )


def table(*processes):
    return {p.pid: p for p in processes}


def place(rank, local=None, world=2, local_world=2, **more):
    environ = {"RANK": str(rank), "LOCAL_RANK": str(rank if local is None else local)}
    environ["WORLD_SIZE"] = str(world)
    if local_world is not None:
        environ["LOCAL_WORLD_SIZE"] = str(local_world)
    return {**environ, **more}


def torchrun_job(cgroup="/user.slice/session-1.scope"):
    return table(
        process(100, 50, LAUNCHER, "swift", cgroup=cgroup),
        process(101, 100, AGENT, "pt_elastic", cgroup=cgroup),
        process(110, 101, RANK, environ=place(0), cgroup=cgroup),
        process(111, 101, RANK, environ=place(1), cgroup=cgroup),
        process(120, 110, RANK, "pt_data_worker", environ=place(0), cgroup=cgroup),
        process(121, 111, RANK, "pt_data_worker", environ=place(1), cgroup=cgroup),
        process(122, 110, RANK, environ=place(0), cgroup=cgroup),
        process(123, 110, ["nvcc", "k.cu"], "nvcc", exe="/usr/bin/nvcc", environ=place(0)),
    )


def roles(job):
    return {member.process.pid: member.role for member in job.members}


def only(jobs):
    (job,) = jobs
    return job


def without(processes, *pids, reaper=1):
    """The same processes after some have gone; their children were given to a reaper."""
    return {
        pid: dataclasses.replace(p, ppid=reaper) if p.ppid in pids else p
        for pid, p in processes.items()
        if pid not in pids
    }


def test_a_torchrun_tree_is_one_job_with_each_process_in_its_role():
    job = only(group(torchrun_job()))
    assert roles(job) == {
        100: Role.LAUNCHER,
        101: Role.AGENT,
        110: Role.RANK,
        111: Role.RANK,
        120: Role.LOADER,
        121: Role.LOADER,
        122: Role.HELPER,
        123: Role.HELPER,
    }
    assert (job.name, job.verb, job.engine, job.uid) == ("sft100xrs", "sft", Engine.SWIFT, 1000)
    assert job.root == ProcessId(100, 1000)
    assert (job.world_size, job.local_world_size, job.multi_node) == (2, 2, False)


def test_launchers_that_an_agent_starts_one_a_rank_are_one_job():
    agent = ("python3", "venv/bin/torchrun", "--nproc_per_node", "2", "venv/bin/swift", "sft")
    tree = [process(100, 50, agent, "torchrun")]
    for i in range(2):
        tree.append(process(110 + i, 100, LAUNCHER, "swift", environ=place(i)))
        tree.append(process(120 + i, 110 + i, RANK, environ=place(i)))
    job = only(group(table(*tree)))
    assert job.root == ProcessId(100, 1000)
    assert (job.verb, job.world_size, job.multi_node) == ("sft", 2, False)
    assert [m.local_rank for m in job.with_role(Role.RANK)] == [0, 1]


def test_loaders_and_helpers_carry_their_ranks_place_and_gpu():
    places = {
        m.process.pid: (m.rank, m.local_rank, m.gpu_hint)
        for m in only(group(torchrun_job())).members
    }
    assert places[100] == places[101] == (None, None, None)
    assert places[111] == places[121] == (1, 1, "1")
    assert places[110] == places[120] == places[122] == places[123] == (0, 0, "0")


def test_a_single_process_job_has_no_ranks_and_the_first_gpu():
    job = only(group(table(process(100, 50, LAUNCHER, "swift"), process(101, 100, RANK))))
    rank = job.with_role(Role.RANK)[0]
    assert (rank.rank, rank.local_rank, rank.gpu_hint) == (None, None, "0")
    assert (job.world_size, job.local_world_size, job.multi_node) == (None, None, False)


def test_a_job_over_several_nodes_is_known_as_such():
    ranks = [process(110 + i, 101, RANK, environ=place(8 + i, i, 16, 8)) for i in range(2)]
    job = only(group(table(process(101, 1, AGENT, "pt_elastic"), *ranks)))
    assert (job.world_size, job.local_world_size, job.multi_node) == (16, 8, True)


def test_deepspeed_does_not_tell_local_world_size_and_its_ranks_are_counted():
    ranks = [process(110 + i, 101, RANK, environ=place(i, i, 4, None)) for i in range(4)]
    agent = process(101, 1, ["deepspeed", "--num_gpus", "4", SFT], "deepspeed")
    starting = group(table(agent, *ranks[:2]))
    assert only(starting).multi_node
    job = only(group(table(agent, *ranks), starting))
    assert (job.local_world_size, job.multi_node) == (4, False)
    assert not only(group(table(agent, *ranks[:1]), [job])).multi_node


def test_two_jobs_of_one_shell_are_two_jobs():
    shell = process(50, 1, ["bash"], "bash", exe="/usr/bin/bash")
    jobs = group(
        table(
            shell,
            process(100, 50, LAUNCHER, "swift"),
            process(101, 100, RANK),
            process(200, 50, LAUNCHER, "swift"),
            process(201, 200, RANK),
        )
    )
    assert [sorted(roles(job)) for job in jobs] == [[100, 101], [200, 201]]


@pytest.mark.parametrize("verb", ["web-ui", "app"])
def test_a_training_started_from_a_page_is_its_own_job(verb):
    page = f"{SITE}/swift/cli/{verb.replace('-', '_')}.py"
    processes = table(
        process(10, 1, ("python3", "venv/bin/swift", verb), "swift"),
        process(11, 10, ("python3", page)),
        process(12, 11, ("sh", "-c", "swift sft"), "sh", exe="/usr/bin/dash"),
        process(100, 12, LAUNCHER, "swift"),
        process(101, 100, RANK),
        process(200, 11, RANK),
    )
    jobs = {job.name: sorted(roles(job)) for job in group(processes)}
    assert jobs == {
        job_name(verb, ProcessId(10, 100)): [10, 11, 12],
        job_name("sft", ProcessId(100, 1000)): [100, 101],
        job_name("sft", ProcessId(200, 2000)): [200],
    }


def test_a_training_stays_its_own_job_though_its_page_had_it_as_a_child_and_in_its_scope():
    scope = "/msswift.slice/msswift-inference.slice/msswift-webui10x2s-main.scope"
    page = process(11, 1, ("python3", f"{SITE}/swift/cli/web_ui.py"), cgroup=scope)
    forked = process(200, 11, page.argv, cgroup=scope)
    before = group(table(page, forked))
    assert len(before) == 1
    after = group(table(page, process(200, 11, RANK, cgroup=scope)), before)
    assert sorted(job.verb for job in after) == ["sft", "web-ui"]
    alone = group(table(process(200, 1, RANK, cgroup=scope)))
    assert only(alone).name == job_name("sft", ProcessId(200, 2000))


def test_ranks_that_their_launcher_and_agent_left_behind_stay_in_the_job():
    processes = torchrun_job()
    before = group(processes)
    for gone in ([100], [101], [100, 101], [100, 101, 110], [100, 101, 110, 111]):
        job = only(group(without(processes, *gone), before))
        assert (job.name, job.root, job.uid) == ("sft100xrs", ProcessId(100, 1000), 1000)
        assert set(roles(job)) == set(processes) - set(gone)


def test_after_a_restart_of_the_daemon_the_scope_tells_the_job():
    scope = "/msswift.slice/msswift-training.slice/msswift-training-u1000.slice/"
    scope += "msswift-training-u1000-sft100xrs.slice/msswift-sft100xrs-main.scope"
    processes = without(torchrun_job(cgroup=scope), 100, 101)
    job = only(group(processes))
    assert (job.name, job.verb, job.root) == ("sft100xrs", "sft", ProcessId(100, 1000))
    assert roles(job)[110] is Role.RANK


def test_a_worker_given_to_a_subreaper_stays_in_its_job():
    processes = torchrun_job()
    before = group(processes)
    job = only(group(without(processes, 110, reaper=77), before))
    assert roles(job)[120] is Role.LOADER
    assert roles(job)[122] is Role.HELPER, "a copy without its rank still is none itself"
    assert roles(job)[123] is Role.HELPER


def test_a_loader_alone_begins_no_job():
    assert group(table(process(120, 1, RANK, "pt_data_worker"))) == ()


def test_a_reused_pid_is_not_the_same_process():
    before = group(torchrun_job())
    stranger = process(110, 1, ["python3", "other.py"], start=999_999)
    assert group(table(stranger), before) == ()
    # … nor is it the parent of processes that are older than it
    younger = process(100, 50, LAUNCHER, "swift", start=999_999)
    jobs = group(table(younger, process(110, 100, RANK)))
    assert len(jobs) == 2


def test_a_user_cannot_join_a_job_by_naming_a_cgroup_like_its_scope():
    fake = (
        "/user.slice/user-1000.slice/user@1000.service/msswift.slice/msswift-sft100xrs-main.scope"
    )
    assert name_in_cgroup(fake) is None
    assert (
        group(table(process(300, 1, ["sleep", "1"], "sleep", exe="/bin/sleep", cgroup=fake))) == ()
    )


def test_a_launcher_between_fork_and_exec_is_not_a_second_job():
    job = only(
        group(table(process(100, 50, LAUNCHER, "swift"), process(101, 100, LAUNCHER, "swift")))
    )
    assert roles(job) == {100: Role.LAUNCHER, 101: Role.HELPER}


def copies(number, *options, comm="python3"):
    argv = (*RANK, *options)
    workers = [process(200 + i, 101, argv, comm) for i in range(number)]
    return table(process(100, 50, LAUNCHER, "swift"), process(101, 100, argv), *workers)


@pytest.mark.parametrize(
    ("number", "options", "role"),
    [
        (2, ["--dataloader_num_workers", "2"], Role.LOADER),
        (2, ["--dataloader_num_workers=2", "--dataset_num_proc", "8"], Role.LOADER),
        (1, [], Role.LOADER),
        (8, ["--dataloader_num_workers", "2", "--dataset_num_proc", "8"], Role.HELPER),
        (4, ["--dataloader_num_workers", "4", "--dataset_num_proc", "4"], Role.HELPER),
        (3, ["--dataloader_num_workers", "banana"], Role.HELPER),
    ],
)
def test_workers_of_an_old_torch_are_known_by_their_number(number, options, role):
    job = only(group(copies(number, *options)))
    assert {m.role for m in job.members if m.process.pid >= 200} == {role}


def test_a_torch_that_names_its_workers_makes_an_unnamed_copy_a_helper():
    processes = copies(1, "--dataloader_num_workers", "1")
    before = group(processes | table(process(300, 101, processes[101].argv, "pt_data_worker")))
    assert roles(only(before))[200] is Role.HELPER
    assert roles(only(group(processes, before)))[200] is Role.HELPER


def test_a_counted_worker_stays_a_loader_when_its_sibling_dies_or_its_rank():
    processes = copies(2, "--dataloader_num_workers", "2")
    before = group(processes)
    assert roles(only(group(without(processes, 201), before)))[200] is Role.LOADER
    assert roles(only(group(without(processes, 101), before)))[200] is Role.LOADER


def test_the_linked_trainer_says_which_of_its_children_load():
    processes = copies(3, "--dataloader_num_workers", "3")
    said = {ProcessId(101, 1010): Registered(workers=(200, 202, 100, 1, 9999))}
    job = only(group(processes, (), said))
    assert roles(job)[200] is roles(job)[202] is Role.LOADER
    assert roles(job)[201] is Role.HELPER
    assert job.registered


def test_a_trainer_cannot_claim_another_jobs_process():
    processes = table(
        process(100, 50, RANK),
        process(200, 50, RANK),
        process(201, 200, ["sh"], "sh", exe="/bin/sh"),
    )
    jobs = group(processes, (), {ProcessId(100, 1000): Registered(workers=(201, 200))})
    assert [roles(job) for job in jobs] == [
        {100: Role.RANK},
        {200: Role.RANK, 201: Role.HELPER},
    ]


def test_a_run_through_the_python_api_is_a_job_once_its_trainer_has_registered():
    api = ("python3", "train_api.py")
    ranks = [
        process(110 + i, 90, api, environ=place(i, MASTER_ADDR="::1", MASTER_PORT="29500"))
        for i in range(2)
    ]
    processes = table(*ranks, process(120, 110, api, "pt_data_worker", environ=ranks[0].environ))
    assert group(processes) == ()
    said = {rank.id: Registered() for rank in ranks}
    job = only(group(processes, (), said))
    assert roles(job) == {110: Role.RANK, 111: Role.RANK, 120: Role.LOADER}
    assert (job.registered, job.world_size) == (True, 2)
    late = group(processes, (), {ranks[1].id: Registered()})
    assert {j.name for j in group(processes, late, said)} == {late[0].name}


def test_trainers_of_two_users_are_two_jobs_though_their_parent_and_rendezvous_are_the_same():
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    api = ("python3", "train_api.py")
    processes = table(
        process(110, 1, api, environ=where), process(111, 1, api, environ=where, uid=1001)
    )
    jobs = group(processes, (), {p.id: Registered() for p in processes.values()})
    assert [(job.uid, set(roles(job))) for job in jobs] == [(1000, {110}), (1001, {111})]


def test_a_spawned_worker_is_a_loader_by_its_name():
    spawned = process(102, 101, ["python3", "-c", "spawn_main()"], "pt_data_worker")
    job = only(group(table(process(101, 1, RANK), spawned)))
    assert roles(job)[102] is Role.LOADER


def test_a_megatron_job_is_known_as_such_also_when_only_a_rank_is_left():
    rank = process(110, 1, ["python3", f"{SITE}/swift/cli/_megatron/sft.py"])
    assert only(group(table(rank))).engine is Engine.MEGATRON


@pytest.mark.parametrize(
    ("visible", "local", "hint"),
    [
        (None, 3, "3"),
        ("0,1", 1, "1"),
        ("5", 0, "5"),
        ("GPU-8a1b,GPU-77", 1, "GPU-77"),
        ("MIG-1234/5/0", 0, "MIG-1234/5/0"),
        ("", 0, None),
        ("-1", 0, None),
        ("0,-1,1", 1, None),
        ("0", 1, None),
        ("banana", 0, None),
        ("0," * 5000, 1, "0"),
        ("0\n", 0, "0"),
        ("\udcff", 0, None),
    ],
)
def test_the_gpu_is_the_entry_that_the_local_rank_selects(visible, local, hint):
    environ = place(local, local, 8, 8)
    if visible is not None:
        environ["CUDA_VISIBLE_DEVICES"] = visible
    assert only(group(table(process(110, 1, RANK, environ=environ)))).members[0].gpu_hint == hint


@pytest.mark.parametrize(
    "environ",
    [
        {"RANK": "banana", "LOCAL_RANK": "-1", "WORLD_SIZE": "1" + "0" * 30},
        {"RANK": "٣", "LOCAL_RANK": "0x1", "WORLD_SIZE": "0"},
        {"RANK": "9999999", "WORLD_SIZE": "\udcff", "LOCAL_RANK": ""},
    ],
)
def test_nonsense_in_the_environment_is_not_believed(environ):
    job = only(group(table(process(110, 1, RANK, environ=environ))))
    assert (job.members[0].local_rank, job.world_size, job.multi_node) == (None, None, False)


def test_sizes_that_contradict_each_other_make_nothing_impossible():
    contradiction = place(5, 7, 2, 4)
    member = only(group(table(process(110, 1, RANK, environ=contradiction)))).members[0]
    assert (member.rank, member.local_rank) == (None, None)


def test_a_name_is_letters_and_digits_and_leads_back_to_its_root():
    root = ProcessId(4711, 12_345_678)
    name = job_name("merge-lora", root)
    assert name.isalnum()
    assert read_name(name) == ("merge-lora", root)
    assert read_name("sft1x") is None
    assert read_name("evil1x1") is None


def test_what_is_grouped_twice_is_the_same():
    processes = torchrun_job()
    first = group(processes)
    assert group(processes, first) == first == group(dict(reversed(processes.items())))


WORD = st.text(st.characters(), max_size=8)
ARGV = st.one_of(
    st.none(), st.lists(WORD, max_size=4).map(tuple), st.sampled_from([LAUNCHER, RANK, AGENT])
)
SMALL = st.integers(0, 8)
ANY_PROCESS = st.builds(
    Process,
    st.builds(ProcessId, st.integers(1, 8), SMALL),
    SMALL,
    SMALL,
    st.one_of(WORD, st.just("pt_data_worker")),
    st.one_of(st.none(), st.just(PYTHON), WORD),
    ARGV,
    st.one_of(
        st.none(),
        st.dictionaries(
            st.sampled_from(["RANK", "LOCAL_RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES"]), WORD
        ),
    ),
    st.one_of(st.none(), WORD, st.just("/msswift.slice/msswift-sft4x3-gpu0.scope")),
    st.one_of(st.none(), st.booleans()),
)


@settings(max_examples=300)
@given(st.lists(ANY_PROCESS, max_size=9), st.lists(ANY_PROCESS, max_size=9))
def test_any_tangle_of_processes_is_grouped_and_none_is_in_two_jobs(first, second):
    before = group(table(*first))
    linked = {p.id: Registered(workers=(1, 2)) for p in first[:2]}
    jobs = group(table(*second), before, linked)
    members = [member.id for job in jobs for member in job.members]
    assert len(members) == len(set(members))
    assert all(read_name(job.name) for job in jobs)


def test_a_rank_seen_as_its_agents_copy_before_its_exec_is_a_rank_after_it():
    """On a quick node a tick falls between fork and exec; the copy's role must not stick."""
    whole = torchrun_job()
    forked = {**whole, 111: dataclasses.replace(whole[111], argv=AGENT, comm="pt_elastic")}
    before = group(forked)
    assert roles(only(before))[111] is Role.HELPER
    assert roles(only(group(whole, before)))[111] is Role.RANK
