"""Run a program under gevent: __main__.py ORDER PROGRAM ARGUMENTS.

ORDER says what comes first: patching the standard library (`patched-first`), or importing lockstead
(`imported-first`). Programs for which gevent is not, or not yet, to be patched are `unpatched`.
"""

from __future__ import annotations

import runpy
import sys
import warnings

order, program = sys.argv[1:3]
del sys.argv[1:3]
if order == "imported-first":
    import lockstead  # noqa: F401

    warnings.simplefilter("ignore")  # gevent warns that ssl was imported before it
assert order == "imported-first" or "lockstead" not in sys.modules
if order != "unpatched":
    from gevent import monkey

    monkey.patch_all()
runpy.run_module(f"tests.behaviour.greenlets.programs.{program}", run_name="__main__")
