"""Runs one stage in a process of its own: argv[1] holds args and patience as JSON; prints the value or the error."""

from __future__ import annotations

import json
import signal
import sys
from typing import Any


def main() -> int:
    # A shell that starts its jobs in the background lets them ignore Ctrl-C; this process must not.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    given: dict[str, Any] = json.loads(sys.argv[1])
    from inventory.errors import GpuctlError
    from provision.weights import room
    from provision.weights.job import stage
    from provision.weights.patience import Patience

    if given.get("believe_in_room"):
        room.check = lambda *args, **kwargs: None
    try:
        value = stage(given["args"], lambda event: None, patience=Patience(**given.get("patience", {})))
    except GpuctlError as error:
        sys.stdout.write(json.dumps({"error": error.to_json()}))
        return 1
    sys.stdout.write(json.dumps(value))
    return 0


if __name__ == "__main__":
    sys.exit(main())
