"""What runs at a site for `testbed torchrun`: the user's script, as `python SCRIPT ARGS` would run it.

The script is not edited. When it asks torch for a process group of the other backend than the one chosen on
the command line, `init_process_group` is given the chosen one. That is arranged by an import hook, so this
module never imports torch: a script that does without pays nothing.
"""

from __future__ import annotations

import atexit
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import runpy
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

# The variables that carry what to run; the script may read STORMBED_BACKEND for itself.
COMMAND: Final = "STORMBED_SCRIPT"
DIRECTORY: Final = "STORMBED_CWD"
BACKEND: Final = "STORMBED_BACKEND"

STORMBED: Final = "stormbed"
GLOO: Final = "gloo"
_TORCH: Final = "torch.distributed.distributed_c10d"


def chosen_backend(asked: str | None, chosen: str) -> str | None:
    """The backend that a process group gets. Pure.

    Args:
        asked: what the script names: "gloo", "cpu:gloo", "stormbed", or None for torch's default.
        chosen: "stormbed" or "gloo", from the command line.

    A backend that is neither of the two, such as "nccl", is left as it is: torch then says what is wrong.
    """
    kinds = {STORMBED, GLOO}
    names = [part.partition(":") for part in asked.lower().split(",")] if asked else []
    cpu = [name or device for device, _, name in names if not name or device == "cpu"]
    return chosen if asked is None or (cpu and cpu[0] in kinds) else asked


def redirect(module: ModuleType, chosen: str) -> None:
    """Let `init_process_group` of torch's module give the chosen backend."""
    original: Callable[..., Any] = module.init_process_group

    @functools.wraps(original)
    def init_process_group(
        backend: str | None = None, init_method: str | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        backend = chosen_backend(backend, chosen)
        # Gloo needs a real store; the rendezvous `stormbed://` has one for this process alone.
        if backend == GLOO and init_method is not None and init_method.startswith(f"{STORMBED}:"):
            init_method = "env://"
        return original(backend, init_method, *args, **kwargs)

    module.init_process_group = init_process_group  # type: ignore[attr-defined]


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for torch's module to be imported, and redirects it then."""

    def __init__(self, chosen: str) -> None:
        self._chosen = chosen

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _TORCH:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._chosen)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: importlib.abc.Loader, chosen: str) -> None:
        self._inner = inner
        self._chosen = chosen

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        redirect(module, self._chosen)

    def __getattr__(self, name: str) -> Any:
        # inspect and tracebacks ask the loader for the source.
        return getattr(self._inner, name)


def main() -> None:
    """Run the script that the environment names, as `__main__`."""
    script, *arguments = json.loads(os.environ[COMMAND])
    os.chdir(os.environ[DIRECTORY])
    sys.meta_path.insert(0, _Finder(os.environ[BACKEND]))
    sys.argv = [script, *arguments]
    # `-m` puts the working directory first; a script finds its own neighbours there.
    sys.path[0] = str(Path(script).parent)
    status = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as asked:
        status = exit_status(asked.code)
    if "torch" in sys.modules:
        end(status)
    sys.exit(status)


def exit_status(code: object) -> int:
    """What `sys.exit(code)` makes of its argument; words go to stderr, as there."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1


def end(status: int) -> NoReturn:
    """End as Python does after a script, but for taking the interpreter apart.

    A thread of gloo may let go of its last tensor a moment after the script has ended. It needs the interpreter
    for that, and where that is half gone, the C++ runtime aborts the process ("terminate called without an active
    exception", one run in ten here), after everything has been done well. github.com/pytorch/pytorch/pull/179291
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
