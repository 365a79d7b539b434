"""The Ray Serve deployment: a replica is one engine in one process.

Ray does what a cluster needs: the HTTP server, replicas on one machine or many, their health and
restarts, scaling.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app import build_app
from engine import Engine
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray_metrics import RayMetrics
from sizes import EngineOptions

from minicache.runtime import Manifest
from minicache.runtime.errors import SessionError

# Beside requests that run or wait in the engine: metrics, health, and what the engine refuses.
SPARE_REQUESTS = 32


class Arguments(BaseModel):
    """What ``application`` is told, by the command line or by a configuration file of Serve.

    Attributes:
        folder: what ``minicache-export`` wrote; the same path on every machine.
        model: name that requests give; None: the folder's.
        replicas: engines, each with these sizes (``EngineOptions`` has the others).
        max_replicas: Ray starts up to so many while all rows are taken; None: no more.
        gpus: of a replica, for exports that run on one.
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=())
    folder: str
    model: str | None = None
    rows: int = Field(16, ge=1)
    kv_bytes: int | None = Field(None, ge=1)
    context: int | None = Field(None, ge=1)
    waiting: int = Field(64, ge=0)
    chunk: int = Field(256, ge=1)
    threads: int = Field(1, ge=1)
    replicas: int = Field(1, ge=1)
    max_replicas: int | None = Field(None, ge=1)
    gpus: float = Field(0.0, ge=0.0)

    def engine_options(self) -> EngineOptions:
        """Sizes of the engine of every replica."""
        names = ("rows", "kv_bytes", "context", "waiting", "chunk", "threads")
        return EngineOptions(**{name: getattr(self, name) for name in names})


def _app() -> FastAPI:
    """Made in every replica."""

    def engine() -> Engine:
        return serve.get_replica_context().servable_object.engine

    def labels() -> dict[str, str]:
        return {"replica": serve.get_replica_context().replica_id.unique_id}

    return build_app(engine, labels)


@serve.deployment
@serve.ingress(_app)
class Server:
    """One replica.

    Args:
        folder: what ``minicache-export`` wrote; the same path on every machine.
        model: name that requests give.
        options: sizes.
    """

    def __init__(self, folder: str, model: str, options: EngineOptions) -> None:
        self.engine = Engine(folder, options, model)
        self._metrics = RayMetrics(self.engine.meters)

    def check_health(self) -> None:
        """Ray calls this every other second; after three failures it replaces the replica."""
        self._metrics.push()
        self.engine.check()

    def __del__(self) -> None:
        engine = getattr(self, "engine", None)  # none where the constructor failed
        if engine is not None:
            engine.close()


def application(arguments: Arguments) -> serve.Application:
    """For ``serve.run`` and for ``import_path`` of a configuration file.

    Raises:
        MiniCacheError: the folder is none of ours, or the sizes do not fit it.
    """
    folder = Path(arguments.folder).resolve()
    options = arguments.engine_options()
    Manifest.load(folder)  # says now, and not in a replica, what is wrong with it
    deployment = Server.options(
        **_replicas(arguments, options),
        max_ongoing_requests=options.rows + options.waiting + SPARE_REQUESTS,
        max_queued_requests=SPARE_REQUESTS,  # beyond it Ray itself answers 503
        ray_actor_options={"num_cpus": options.threads, "num_gpus": arguments.gpus},
        health_check_period_s=2,
        graceful_shutdown_timeout_s=20,
    )
    return deployment.bind(str(folder), arguments.model or folder.name, options)


def _replicas(arguments: Arguments, options: EngineOptions) -> dict[str, Any]:
    if arguments.max_replicas is None:
        return {"num_replicas": arguments.replicas}
    if arguments.max_replicas < arguments.replicas:
        raise SessionError(
            f"max_replicas is {arguments.max_replicas}, replicas are {arguments.replicas}; give "
            "at least as many"
        )
    scaling = {
        "min_replicas": arguments.replicas,
        "max_replicas": arguments.max_replicas,
        "target_ongoing_requests": options.rows,
    }
    return {"num_replicas": None, "autoscaling_config": scaling}
