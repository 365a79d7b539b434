"""Serves an exported folder with OpenAI's API on Ray Serve: ``serve.py FOLDER --kv-bytes 512MiB``.

It starts Ray on this machine, or joins the cluster that ``RAY_ADDRESS`` names, and serves until it
is interrupted.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
from pathlib import Path

import ray
from ray import serve
from server import Arguments, application

from minicache.runtime.errors import MiniCacheError

HERE = Path(__file__).resolve().parent


def byte_count(text: str) -> int:
    """Reads ``536870912``, ``512MiB``, ``0.5GiB`` or ``500MB``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)(i?)B?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes, such as 512MiB")
    number, unit, binary = found.groups()
    return int(float(number) * (1024 if binary else 1000) ** " KMGT".index(unit or " "))


def main() -> int:
    """Serves until it is interrupted; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("folder", help="what minicache-export wrote")
    parser.add_argument("--model", help="name that requests give (default: the folder's)")
    parser.add_argument("--rows", type=int, default=16, help="requests side by side, per replica")
    parser.add_argument("--kv-bytes", type=byte_count, help="KV cache of one replica, e.g. 512MiB")
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
        app = application(Arguments(**given))
    except MiniCacheError as error:
        print(f"serve.py: {error}", file=sys.stderr)
        return error.exit_code
    # Replicas get the modules beside this file, on whatever machine they run.
    ray.init(runtime_env={"working_dir": str(HERE)}, log_to_driver=False)
    serve.start(http_options={"host": host, "port": port})
    signals = signal.SIGINT, signal.SIGTERM
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # they are waited for, below
    serve.run(app)
    print(f"http://{host}:{port}/v1", flush=True)
    signal.sigwait(signals)
    serve.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
