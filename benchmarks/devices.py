"""How long gpuctl takes to plan device access, beside named peers measured in the same run.

.venv/bin/python benchmarks/devices.py            # both parts
.venv/bin/python benchmarks/devices.py --no-link  # without the lab
"""

from __future__ import annotations

import argparse
import configparser
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from containers import UVM, Sample, samples  # noqa: E402
from link import DelayedLink  # noqa: E402

from inventory.model import Container, Gpus  # noqa: E402
from provision.devices.config import conf  # noqa: E402
from provision.devices.facts import Content, Gpu, HostFacts, Node, NodeKind, State  # noqa: E402
from provision.devices.planning import plan  # noqa: E402

DELAY_S = 0.025
"""One direction of a link with a round-trip time of 50 ms."""
ROUNDS = 5


def host_of(sample: Sample) -> HostFacts:
    """A host whose nodes are right at this boot."""
    nodes = [*((f"nvidia{minor}", 195, minor) for minor in range(sample.gpus)), ("nvidiactl", 195, 255)]
    nodes += [
        ("nvidia-modeset", 195, 254),
        ("nvidia-uvm", UVM, 0),
        ("nvidia-uvm-tools", UVM, 1),
        ("net/tun", 10, 200),
    ]
    return HostFacts(
        vmid=sample.vmid, boot_id="b", kernel="6.17.4-2-pve", now_s=1000.0, uptime_s=300.0,
        proc_devices=Content(
            State.PRESENT, f"Character devices:\n 10 misc\n195 nvidia\n{UVM} nvidia-uvm\n511 aux\n\nBlock devices:\n"
        ),
        driver=Content(), params=Content(), conf=Content(State.PRESENT, sample.text), conf_digest="",
        conf_path=f"/etc/pve/lxc/{sample.vmid}.conf", pve_container="6.1.10",
        nodes=tuple(Node(f"/dev/{name}", NodeKind.CHAR, major, minor, 0o666) for name, major, minor in nodes),
        gpus=tuple(Gpu(f"0000:{minor:02x}:00.0", minor) for minor in range(sample.gpus)),
    )  # fmt: skip


def planned(sample: Sample, host: HostFacts, container: Container) -> plan.ConfPlan:
    """What gpuctl does with one file: read it, judge it, decide the edits."""
    return plan.conf_plan(conf.parse(sample.text), host, container)


def _by_configparser(text: str) -> dict[str, dict[str, str]]:
    reader = configparser.ConfigParser(
        strict=False, interpolation=None, delimiters=(":", "="), default_section="", allow_no_value=True
    )
    reader.read_string("[main]\n" + text)
    return {name: dict(reader[name]) for name in reader.sections()}


_LINE = re.compile(r"([^:=\s]+)\s*[:=]\s*(.*?)\s*$")


def _by_expression(text: str) -> list[tuple[str, str, str]]:
    section, found = "", []
    for line in text.splitlines():
        if line.startswith("["):
            section = line
        elif not line.startswith("#") and (match := _LINE.match(line)):
            found.append((section, match[1], match[2]))
    return found


def cpu_s(work: Callable[[], object]) -> float:
    """The median of a few rounds, in seconds of this process's CPU."""
    took = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return statistics.median(took)


def part_one() -> None:
    files = samples()
    lines = sum(sample.text.count("\n") for sample in files) / len(files)
    work = [(s, host_of(s), Container(host="pve", vmid=s.vmid, gpus=Gpus(count=s.gpus))) for s in files]
    edits = sum(len(planned(*item).edits) for item in work)
    print(
        f"1. {len(files)} containers of {lines:.0f} lines on average, {edits} edits planned; "
        f"CPU seconds, median of {ROUNDS}"
    )
    loop = cpu_s(lambda: [_by_expression(s.text) for s in files])
    known = cpu_s(lambda: [_by_configparser(s.text) for s in files])
    parsed = cpu_s(lambda: [conf.parse(s.text) for s in files])
    whole = cpu_s(lambda: [planned(*item) for item in work])
    rows = [
        ("a loop with one regular expression (keys only, lossy)", loop),
        ("configparser of the standard library (lossy: raw lines of one key overwrite each other)", known),
        ("gpuctl: parse, lossless, as Proxmox reads it", parsed),
        ("gpuctl: parse and plan", whole),
        ("the bar for parse and plan", 1.0),
    ]
    for name, seconds in rows:
        print(f"   {seconds:7.3f} s  {seconds / known:5.2f} x configparser  {name}")


def part_two() -> None:
    tools = [name for name in ("ssh", "curl") if shutil.which(name) is None]
    if tools:
        print(f"2. left out: {' and '.join(tools)} is not installed, so there is no peer to compare with")
        return
    with tempfile.TemporaryDirectory(prefix="gpuctl-bench-") as made:
        folder = Path(made) / "lab"
        gpuctl("lab", "up", "--dir", str(folder))
        try:
            _over_the_link(folder)
        finally:
            gpuctl("lab", "down", "--dir", str(folder), "--purge")


def gpuctl(*words: str, count: str = "") -> subprocess.CompletedProcess[str]:
    """Run the installed program, or (`count`) this file as a child that counts its calls.

    The exit code is its verdict on the lab, which is no matter here.
    """
    program = str(Path(sys.executable).parent / "gpuctl")
    argv = [sys.executable, __file__, "--child", count, *words] if count else [program, *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)


def _over_the_link(folder: Path) -> None:
    told = (folder / "gpuctl.yaml").read_text()
    api, ssh = (int(re.search(pattern, told)[1]) for pattern in (r"https://127\.0\.0\.1:(\d+)", r"  port: (\d+)"))  # type: ignore[index]
    with DelayedLink({"api": api, "ssh": ssh}, DELAY_S) as link:
        known = (folder / "ssh" / "known_hosts").read_text()
        (folder / "ssh" / "known_hosts_link").write_text(known.replace(f":{ssh}", f":{link.ports['ssh']}"))
        told = told.replace(f":{api}", f":{link.ports['api']}").replace(
            f"port: {ssh}", f"port: {link.ports['ssh']}"
        )
        inventory = folder / "link.yaml"
        inventory.write_text(told.replace("ssh/known_hosts", "ssh/known_hosts_link"))
        words = ("devices", "plan", "ct200", "--inventory", str(inventory))
        first = wall_s(lambda: gpuctl(*words))
        with tempfile.NamedTemporaryFile() as counts:
            answers = [timed(lambda: gpuctl(*words)) for _ in range(ROUNDS)]
            gpuctl(*words, count=counts.name)
            calls = json.loads(Path(counts.name).read_text())
        start = statistics.median(wall_s(lambda: gpuctl("--version")) for _ in range(ROUNDS))
        peer = statistics.median(wall_s(lambda: _peer(folder, link.ports)) for _ in range(ROUNDS))
    ours = statistics.median(seconds for seconds, _ in answers)
    print(
        f"2. `gpuctl devices plan ct200` to the embedded host, round-trip time {2000 * DELAY_S:.0f} ms; "
        f"wall seconds, median of {ROUNDS}"
    )
    print(
        f"   {peer:7.3f} s   1.00 x  peer: `ssh root@host true`, then one `curl` for a ticket, over the same link"
    )
    codes = sorted({code for _, code in answers})
    print(f"   {ours:7.3f} s  {ours / peer:5.2f} x  gpuctl devices plan (exit codes {codes})")
    print(f"   {start:7.3f} s  {start / peer:5.2f} x  of which the interpreter's start: gpuctl --version")
    print(f"   {first:7.3f} s  {first / peer:5.2f} x  the first run, which also brings the zip application over")
    print(f"   {calls['api']} API calls, {calls['ssh']} SSH commands, {calls['sftp']} SFTP sessions in one run")


def wall_s(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def timed(work: Callable[[], subprocess.CompletedProcess[str]]) -> tuple[float, int]:
    began = time.perf_counter()
    done = work()
    return time.perf_counter() - began, done.returncode


def _peer(folder: Path, ports: dict[str, int]) -> None:
    shell = ["ssh", "-F", "none", "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={folder}/ssh/known_hosts_link",
             "-i", str(folder / "ssh" / "client_key"), "-p", str(ports["ssh"]), "root@127.0.0.1", "true"]  # fmt: skip
    ticket = ["curl", "-sS", "--insecure", "-o", "/dev/null", "--data-urlencode", "username=root@pam",
              "--data-urlencode", f"password@{folder}/secrets/root-pam",
              f"https://127.0.0.1:{ports['api']}/api2/json/access/ticket"]  # fmt: skip
    for argv in (shell, ticket):
        subprocess.run(argv, check=True, timeout=60, stdout=subprocess.DEVNULL)


def child(count: str, words: list[str]) -> None:
    """gpuctl itself, with its requests and commands counted where the libraries send them."""
    calls = {"api": 0, "ssh": 0, "sftp": 0}
    if count:
        import paramiko
        import requests

        def counted(owner: type, name: str, kind: str) -> None:
            real = getattr(owner, name)

            def wrapper(*args: Any, **more: Any) -> Any:
                calls[kind] += 1
                return real(*args, **more)

            setattr(owner, name, wrapper)

        counted(requests.Session, "send", "api")
        counted(paramiko.Channel, "exec_command", "ssh")
        counted(paramiko.Channel, "invoke_subsystem", "sftp")
    from gpuctl.cli import main

    sys.argv = ["gpuctl", *words]
    try:
        main()
    finally:
        if count:
            Path(count).write_text(json.dumps(calls))


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-link", action="store_true", help="leave part two out")
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} processors, load {load:.1f}; "
        "ratios compare better than seconds"
    )
    part_one()
    if not asked.no_link:
        part_two()


if __name__ == "__main__":
    main()
