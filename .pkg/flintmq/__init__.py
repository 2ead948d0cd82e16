"""FlintMQ: a standalone, durable message-log broker with Apache RocketMQ's store, and its thin client.

Import what you need from its parts: :mod:`flintmq.client` for applications, :mod:`flintmq.broker` for the daemon.
``flintmq.__version__`` is the version of the installed package, or of the clone that this is. This module imports
nothing before that is asked for, so that the client stays light.
"""


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import metadata

    try:
        version = metadata.version("flintmq")
    except metadata.PackageNotFoundError:  # used from a clone
        version = _version_of_clone()
    globals()[name] = version
    return version


def _version_of_clone() -> str:
    import tomllib
    from pathlib import Path

    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    return str(project["project"]["version"])
