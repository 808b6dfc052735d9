"""The main job in the lab: from a rebooted host to a measured baseline, and what a user sees on the way."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from labkit import Lab

pytestmark = [pytest.mark.lab, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(300)]

QUICK = (("max_tokens: [16]", "max_tokens: [8]"), ("repeats: 3", "repeats: 1"))
"""The same job with fewer tokens."""


@pytest.fixture(scope="module")
def inventory(lab: Lab) -> Path:
    return lab.variant("quick.yaml", *QUICK)


def test_the_incident_from_reboot_to_baseline(lab: Lab, inventory: Path) -> None:
    lab.lab("reboot")
    before = lab.conf.read_bytes()

    # What the evening began with: NVML is fine, CUDA is not, and preflight says why.
    sick = lab.run("preflight", "--json")
    report = json.loads(sick.stdout)
    assert sick.returncode == 2
    by_id = {check["id"]: check for check in report["checks"]}
    assert by_id["nvml.init"]["status"] == "ok"
    assert by_id["cuda.init"]["because"] in report["root_causes"]
    assert "nvidia-uvm" in next(c["summary"] for c in report["checks"] if c["id"] == report["root_causes"][0])

    # The whole plan can be seen without a change.
    dry = lab.run("recover", "ct200", "--dry-run", inventory=inventory)
    assert dry.returncode == 0, dry.stderr
    assert "nvidia-modprobe -u -c 0" in dry.stderr
    assert lab.conf.read_bytes() == before

    # It does not touch host or container unasked.
    unasked = lab.run("recover", "ct200", inventory=inventory)
    assert unasked.returncode == 2
    assert "--yes" in unasked.stderr
    assert lab.conf.read_bytes() == before

    done = lab.run("recover", "ct200", "--yes", "--json", inventory=inventory)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["outcome"] == "recovered"
    assert answer["lab"] is True
    changed = {stage["stage"]: stage["changed"] for stage in answer["stages"]}
    assert list(changed) == ["connect", "host", "devices", "container", "weights", "preflight", "engine", "bench"]
    assert all(changed[name] for name in ("host", "devices", "container", "weights", "engine", "bench"))
    assert re.search(r"moved from \d+ to \d+ at this boot", done.stderr)

    # Exactly one line of the configuration is another one.
    after = lab.conf.read_bytes()
    pairs = [(a, b) for a, b in zip(before.splitlines(True), after.splitlines(True), strict=True) if a != b]
    assert len(pairs) == 1
    assert re.fullmatch(rb"lxc\.cgroup2\.devices\.allow: c \d+:\* rwm\n", pairs[0][1])

    # Now CUDA works, and a second run changes nothing and says so.
    assert lab.run("preflight", "--level", "full").returncode == 0
    again = lab.run("recover", "ct200", inventory=inventory)
    assert again.returncode == 0, again.stderr
    assert "nothing had to be changed" in again.stdout
    assert lab.conf.read_bytes() == after
    line = again.stdout.splitlines()[-1]
    assert re.search(
        r"^lab: SmolLM2-135M Q4_1, llama\.cpp, auto, [\d.]+ tok/s .*tokens of which 0 reasoning", line
    )

    # Every number can be looked up, with what was read back from the engine.
    listed = lab.json("results", "list", "ct200")["results"]
    assert [entry["lab"] for entry in listed] == [True]
    shown = lab.json("results", "show", listed[0]["run_id"])["result"]
    assert shown["proof"]["proven"] is True
    assert shown["boot_id"] == answer_boot(lab)

    # The next reboot: results of this boot are set aside, a new baseline is compared with the old one.
    lab.lab("reboot")
    third = lab.run("recover", "ct200", "--yes", inventory=inventory)
    assert third.returncode in (0, 1), (
        third.stderr
    )  # 1: slower than before by more than the limit (a busy machine)
    assert "set aside 1 to" in third.stderr
    assert "of the baseline of" in third.stderr
    assert "from the cache" in third.stderr  # the Hub was not needed for the weights


def answer_boot(lab: Lab) -> str:
    facts = lab.run("devices", "facts", "ct200")
    return str(json.loads(facts.stdout)["host"]["boot_id"])


def test_quiet_says_nothing_when_all_is_well(lab: Lab, inventory: Path) -> None:
    lab.run("recover", "ct200", "--yes", "--until", "container", inventory=inventory)
    done = lab.run("recover", "ct200", "--quiet", "--until", "container", inventory=inventory)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    quiet = lab.run("preflight", "--quiet")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


def test_stages_can_be_left_out_at_both_ends(lab: Lab, inventory: Path) -> None:
    done = lab.run("recover", "ct200", "--from", "devices", "--until", "container", "--json", inventory=inventory)
    assert done.returncode == 0, done.stderr
    assert [s["stage"] for s in json.loads(done.stdout)["stages"]] == ["connect", "devices", "container"]


def test_a_bench_of_its_own_measures_again(lab: Lab, inventory: Path) -> None:
    done = lab.run(
        "bench", "ct200", "--task", "fib", "--max-tokens", "8", "--repeat", "1", "--json", inventory=inventory
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    result = json.loads(done.stdout)["result"]
    assert [shape["task"] for shape in result["shapes"]] == ["fib"]
    assert result["lab"] is True


def test_every_answer_of_the_lab_is_marked_as_lab(lab: Lab, inventory: Path) -> None:
    for words in (
        ("recover", "ct200", "--until", "container"),
        ("devices", "show", "ct200"),
        ("stage", "ct200"),
        ("engine", "status", "ct200"),
        ("preflight", "ct200"),
    ):
        done = lab.run(*words, inventory=inventory)
        assert done.stdout, done.stderr
        assert all(line.startswith(("lab: ", " ")) for line in done.stdout.splitlines()), done.stdout
    assert lab.json("devices", "plan", "ct200")["lab"] is True
    assert lab.json("stage", "ct200")["lab"] is True


def test_a_container_with_its_own_sshd_is_reached_by_it_and_not_by_pct(lab: Lab, inventory: Path) -> None:
    # The lab's container has none; the host's stands in.
    text = inventory.read_text()
    ssh = text[text.index("    ssh:\n") : text.index("\ncontainers:")].rstrip()
    own = lab.folder / "own-sshd.yaml"
    own.write_text(text.replace("    vmid: 200\n", f"    vmid: 200\n{ssh}\n"))
    inside = json.loads(lab.run("devices", "facts", "ct200", inventory=own).stdout)["inside"]
    assert "nodes" in inside
    closed = re.sub(r"port: \d+", "port: 1", ssh)
    own.write_text(text.replace("    vmid: 200\n", f"    vmid: 200\n{closed}\n"))
    inside = json.loads(lab.run("devices", "facts", "ct200", inventory=own).stdout)["inside"]
    assert "127.0.0.1:1 refuses connections" in inside["unreadable"]


def test_a_slower_baseline_than_before_the_reboot_is_a_warning_with_exit_code_1(lab: Lab, inventory: Path) -> None:
    strict = lab.folder / "strict.yaml"
    strict.write_text(inventory.read_text().replace("baseline_drop_pct: 75", "baseline_drop_pct: 0.001"))
    assert lab.run("recover", "ct200", "--yes", inventory=inventory).returncode == 0
    fast = newest_result(lab)
    # What the same machine did before this boot: twice as fast.
    before = json.loads(fast.read_text())
    before["boot_id"], before["run_id"] = "0" * 36, before["run_id"] + "-before"
    for shape in before["shapes"]:
        for run in shape["runs"]:
            run["sample"]["decode_tok_s"] *= 2
    other = fast.parent.parent / before["run_id"]
    other.mkdir()
    (other / "result.json").write_text(json.dumps(before))
    done = lab.run("recover", "ct200", inventory=strict)
    assert done.returncode == 1, done.stderr
    assert "below the baseline before the reboot" in done.stdout


def newest_result(lab: Lab) -> Path:
    from gpuctl.stages.bench import home

    return max(home("ct200").glob("*/result.json"), key=lambda path: path.stat().st_mtime_ns)
