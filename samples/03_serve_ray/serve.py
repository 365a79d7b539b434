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
from typing import Any

import ray
from pydantic import ValidationError
from ray import serve
from server import Arguments, application

from minicache.runtime.byte_count import read_byte_count
from minicache.runtime.errors import MiniCacheError

HERE = Path(__file__).resolve().parent
# A cluster of our own needs no dashboard, and little room for objects: nothing large is passed on.
LOCAL: dict[str, Any] = {"include_dashboard": False, "object_store_memory": 128 << 20}


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
    own: dict[str, Any] = {} if "RAY_ADDRESS" in os.environ else LOCAL
    # Replicas get the modules beside this file, on whatever machine they run.
    ray.init(runtime_env={"working_dir": str(HERE)}, log_to_driver=False, **own)
    serve.start(http_options={"host": host, "port": port})
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        serve.run(app)
        print(f"http://{host}:{port}/v1", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        pass
    except RuntimeError as error:
        return _say(f"the replicas do not start: {_reason() or error}")
    finally:
        serve.shutdown()
    return 0


def _reason() -> str:
    """What a replica's constructor said; Ray keeps the traceback in the deployment's state."""
    applications = serve.status().applications.values()
    texts = [state.message for app in applications for state in app.deployments.values()]
    found = re.findall(r"^(?:minicache\.runtime\.errors\.)?\w+Error: (.+)$", "\n".join(texts), re.M)
    return found[-1] if found else ""


def _say(message: str) -> int:
    print(f"serve.py: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
