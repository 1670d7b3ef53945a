"""Errors about actors that cannot start."""

from __future__ import annotations

from ray.exceptions import ActorDiedError, RayActorError

from agent_rft.actors.runtime.actor_calls import find_start_error

IMPORT = """The actor died because of an error raised in its creation task, ray::DispatcherActor.__init__()
RuntimeError: The actor with name DispatcherActor failed to import on the worker. This may be because needed library

ModuleNotFoundError: No module named 'actors'
"""


def test_an_actor_that_cannot_start_is_distinguished_from_one_that_died() -> None:
    broken = RayActorError(error_msg="in its creation task\n  File 'x'\nOSError: no space", actor_init_failed=True)
    assert str(find_start_error(broken, "the grader pool")) == "the grader pool cannot start: OSError: no space"
    assert find_start_error(ActorDiedError(), "the grader pool") is None
    assert find_start_error(ValueError("x"), "the grader pool") is None


def test_a_node_without_the_package_is_given_as_the_reason() -> None:
    error = find_start_error(RayActorError(error_msg=IMPORT, actor_init_failed=True), "engine-0")
    assert error is not None
    reason = "engine-0 cannot start: ModuleNotFoundError: No module named 'actors'"
    assert error.message.startswith(f"{reason}; on each node, install")
