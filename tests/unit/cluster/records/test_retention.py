import pytest

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.spec.operator.operator_config import RecordLimits
from agent_rft.trainer.loop.checkpoint import Checkpoints, LoopState
from tests.support.builders import group, group_request

NAMES = [
    "test-before",
    "validation-000000",
    "step-000001",
    "validation-000001",
    "step-000002",
    "zero-variance-000003-1",
]
NAMES += ["step-000003", "validation-000003", "step-000004"]
ALWAYS = {"test-before", "validation-000000", "validation-000003"}


async def nothing(folder):
    pass


async def kept(path, limits, saved_step):
    """The files of a run of NAMES, two rollouts each, with a checkpoint of one step."""
    run = RunFolder(path, limits)
    if saved_step:
        await Checkpoints(run.checkpoints).save(LoopState(saved_step, saved_step, 0, [], 0, None), nothing)
    for name in NAMES:
        run.handle_groups(name, [group(group_request(0, 2), [0.0, 1.0])])
    run.close()
    assert run.problems == []
    assert [f.name for f in run.index.files()] == run.rollout_names()
    return set(run.rollout_names())


async def test_all_is_kept_by_default(tmp_path):
    assert await kept(tmp_path, RecordLimits(), 4) == set(NAMES)


async def test_the_oldest_rollouts_of_training_are_removed_first(tmp_path):
    assert await kept(tmp_path, RecordLimits(max_rollouts=10), 4) == {*ALWAYS, "step-000003", "step-000004"}


async def test_what_is_needed_stays_beyond_any_limit(tmp_path):
    assert await kept(tmp_path, RecordLimits(max_rollouts=1), 2) == {
        *ALWAYS,
        "zero-variance-000003-1",
        "step-000003",
        "step-000004",
    }


async def test_without_a_checkpoint_nothing_is_removed(tmp_path):
    assert await kept(tmp_path, RecordLimits(max_rollouts=1), 0) == set(NAMES)


async def test_a_limit_of_bytes(tmp_path):
    one = await kept(tmp_path / "all", RecordLimits(), 4)
    size = max((tmp_path / "all" / "rollouts" / f"{name}.jsonl.zst").stat().st_size for name in one)
    left = await kept(tmp_path / "some", RecordLimits(max_rollout_bytes=size * 6), 4)
    assert len(left) == 6 and {"step-000003", "step-000004"} <= left


@pytest.mark.parametrize("value", [0, -1, 1.5, "many"])
def test_a_limit_is_a_positive_number(value):
    with pytest.raises(ValueError, match="max_rollouts"):
        RecordLimits(max_rollouts=value)
