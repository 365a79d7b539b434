"""Serves an exported folder with OpenAI's API on Ray Serve: ``serve.py FOLDER --kv-bytes 512MiB``.

It starts Ray on this machine, or joins the cluster that ``RAY_ADDRESS`` names, and serves until it
is interrupted.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from pathlib import Path

import ray
from pydantic import ValidationError
from ray import serve
from server import Arguments, application

from minicache.runtime.byte_count import read_byte_count
from minicache.runtime.errors import MiniCacheError

HERE = Path(__file__).resolve().parent
OBJECT_STORE = {"object_store_memory": 128 << 20}


def main() -> int:
    """Serves until it is interrupted; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("folder", help="what minicache-export wrote")
    parser.add_argument("--model", help="name that requests give (default: the folder's)")
    parser.add_argument("--rows", type=int, default=16, help="requests side by side, per replica")
    parser.add_argument("--kv-bytes", help="KV cache of one replica, such as 512MiB")
    parser.add_argument("--context", type=int, help="tokens per request (default: the model's)")
    parser.add_argument("--waiting", type=int, default=64, help="requests that may wait")
    parser.add_argument("--chunk", type=int, default=256, help="prompt tokens per step")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of one replica")
    parser.add_argument("--replicas", type=int, default=1, help="engines (default: 1)")
    parser.add_argument("--max-replicas", type=int, help="let Ray start up to so many under load")
    parser.add_argument("--gpus", type=float, default=0.0, help="of one replica")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    given = vars(parser.parse_args())
    host, port = given.pop("host"), given.pop("port")
    try:
        if given["kv_bytes"] is not None:
            given["kv_bytes"] = read_byte_count(given["kv_bytes"])
        app = application(Arguments(**given))
    except MiniCacheError as error:
        return _say(str(error))
    except ValidationError as error:
        first = error.errors()[0]
        return _say(f"--{first['loc'][0]}: {first['msg'].lower()}".replace("_", "-"))
    # A cluster of our own needs no dashboard, and no room for objects: nothing large is passed on.
    own = {} if "RAY_ADDRESS" in os.environ else {"include_dashboard": False, **OBJECT_STORE}
    # Replicas get the modules beside this file, on whatever machine they run.
    ray.init(runtime_env={"working_dir": str(HERE)}, log_to_driver=False, **own)
    serve.start(http_options={"host": host, "port": port})
    signals = signal.SIGINT, signal.SIGTERM
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # they are waited for, below
    try:
        serve.run(app)
    except RuntimeError as error:  # a replica's constructor failed; Ray tells where, line by line
        reasons = re.findall(r"^minicache\S*: (.+)$", str(error), re.MULTILINE)
        return _say(f"the replicas do not start: {reasons[-1] if reasons else error}")
    print(f"http://{host}:{port}/v1", flush=True)
    signal.sigwait(signals)
    serve.shutdown()
    return 0


def _say(message: str) -> int:
    print(f"serve.py: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
