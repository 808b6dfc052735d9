"""pct, nvidia-modprobe, modprobe and lsmod of a lab node: hands its arguments and open files to the lab's daemon."""

import array
import json
import os
import socket
import sys

DEFAULT_SOCKET = "/run/gpuctl-lab/control.sock"


def _connect() -> socket.socket:
    path = os.environ.get("GPUCTL_LAB_SOCKET", DEFAULT_SOCKET)
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_CLOEXEC)  # noqa: PTH120 -- pathlib costs start time
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # A socket address holds 107 bytes; a lab's folder may be deeper than that.
    client.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")  # noqa: PTH119
    return client


def _extra_file(program: str, words: "list[str]") -> "int | None":
    """The file that `pct push` reads or `pct pull` writes: opened here, with this process's view and rights."""
    if program != "pct" or len(words) < 4 or words[0] not in ("push", "pull"):
        return None
    plain = [word for index, word in enumerate(words[1:], 1) if not _is_option(words, index)]
    if len(plain) < 3:
        return None
    if words[0] == "push":
        return os.open(plain[1], os.O_RDONLY)
    return os.open(plain[2], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)


def _is_option(words: "list[str]", index: int) -> bool:
    return words[index].startswith("-") or (words[index - 1].startswith("-") and "=" not in words[index - 1])


def main(argv: "list[str]") -> int:
    """Run one program by the name it was called by; its exit status is the answer's."""
    program, words = os.path.basename(argv[0]), argv[1:]  # noqa: PTH119
    files = [0, 1, 2]
    try:
        extra = _extra_file(program, words)
    except OSError as error:
        sys.stderr.write(f"failed to open {error.filename}: {error.strerror}\n")
        return 2
    if extra is not None:
        files.append(extra)
    try:
        client = _connect()
        request = json.dumps({"program": program, "words": words, "cwd": os.getcwd()}).encode() + b"\n"  # noqa: PTH109
        client.sendmsg([request[:1]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
        client.sendall(request[1:])
        answer = client.makefile("rb").readline()
    except OSError as error:
        sys.stderr.write(f"{program}: the lab does not answer: {error.strerror}\n")
        return 255
    except KeyboardInterrupt:
        return 130
    if not answer:
        sys.stderr.write(f"{program}: the lab went away\n")
        return 255
    return int(json.loads(answer)["rc"])


if __name__ == "__main__":
    sys.exit(main(sys.argv))
