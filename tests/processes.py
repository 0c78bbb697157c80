"""Child processes that start at once and clean.

A plain fork takes along the threads that autograd may have started in a test before, and cannot train then; a spawned
process takes seconds to import. A fork server imports once, trains nothing, and is forked.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext


def ready_server() -> ForkServerContext:
    """Return the context once its server has everything imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["glocal.cli", "glocal.recipes.run", "tests.unit.train.tiny"])
    warm = context.Process(target=int)
    warm.start()
    warm.join()
    return context
