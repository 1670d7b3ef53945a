"""A synthetic run that improves: rollouts of every shape, reported to sinks as the loop does."""

import random
from dataclasses import dataclass, field

import numpy as np

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.events import CheckpointSaved, Evaluated, StepDone
from agent_rft.spec.job import JobSpec
from agent_rft.spec.step_plan import resolve_plan
from agent_rft.trainer.loop.evaluation import summarize
from agent_rft.trainer.loop.rl_metrics import rollout_metrics
from agent_rft.types import (
    DiscardedRollout,
    Grade,
    Group,
    GroupRequest,
    Rollout,
    Segment,
    Task,
    ToolCall,
    ToolResult,
    Turn,
)
from tests.support.events import stream_of

TOOLS = ("search", "cat", "list")
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)>\x1b[31m[bold]red[/bold]"


@dataclass
class Synthetic:
    """Makes rollouts; `skill`, from 0 to 1, is the quality of the policy."""

    rng: random.Random = field(default_factory=lambda: random.Random(7))

    def task(self, number: int) -> Task:
        question = f"what was net income of company {number} in {2010 + number % 8}?"
        schemas = tuple({"type": "function", "function": {"name": name, "parameters": {}}} for name in TOOLS)
        messages = ({"role": "system", "content": "Answer in figures."}, {"role": "user", "content": question})
        item = {"messages": list(messages), "tools": list(schemas), "reference_answer": str(1000 + number)}
        return Task(f"{number}-{number:08x}", messages, schemas, item)

    def turn(self, start: int, call_names: tuple[str, ...], text: str) -> Turn:
        calls = tuple(
            ToolCall(f"call_{start}_{i}", name, f'{{"query": "company {i}"}}') for i, name in enumerate(call_names)
        )
        results = tuple(
            ToolResult(call.call_id, "vorzen/2013/income: 1,204 " * self.rng.randint(1, 60), None, self.rng.random())
            for call in calls
        )
        return Turn(start, start + 20, text, calls, results, self.rng.uniform(0.2, 1.0))

    def rollout(self, task: Task, sample: int, version: int, skill: float, answer: str | None = None) -> Rollout:
        rng, turns, start = self.rng, [], 40
        for _ in range(max(1, round(rng.gauss(5 - 3 * skill, 1)))):
            names = tuple(rng.choices(TOOLS, (3, 2, 1 + 4 * (1 - skill)), k=2 if rng.random() < skill else 1))
            turns.append(
                self.turn(start, names, f"<think>\nI look at {names[0]}.\n</think>\n<tool_call>...</tool_call>")
            )
            start += 50
        right = rng.random() < 0.25 + 0.6 * skill
        answer = answer or (task.item["reference_answer"] if right else str(rng.randint(1, 999)))
        turns.append(Turn(start, start + 20, answer, model_s=0.3))
        length = start + 20
        mask = np.zeros(length, dtype=np.bool_)
        for turn in turns:
            mask[turn.start : turn.stop] = True
        logprobs = np.where(mask, -np.random.default_rng(length).exponential(size=length), 0).astype(np.float32)
        versions = np.where(mask, np.where(np.arange(length) < 90, version, version + 1), -1).astype(np.int32)
        grade = Grade(1.0 if right else 0.0, {"exact": float(right), "brevity": rng.random()}, 0.05)
        return Rollout(
            f"trace_{rng.getrandbits(64):016x}",
            task.row_id,
            0,
            sample,
            0,
            (Segment(np.arange(length, dtype=np.int32) % 298, mask, logprobs, versions),),
            tuple(turns),
            answer,
            "answer",
            grade,
            max(0.0, grade.value - 0.01 * len(turns)),
            reasoning_tokens=30,
            wall_s=length / 50,
        )

    def groups(self, count, size, purpose, version, skill, hostile=False):
        found = []
        for number in range(count):
            task = self.task(number)
            rollouts = [self.rollout(task, i, version, skill, HOSTILE if hostile else None) for i in range(size)]
            lost = ()
            if number == 1 and size > 1:
                gone = rollouts.pop()
                lost = (DiscardedRollout(gone.trace_id, task.row_id, size - 1, "tool_failed", "search answered 503"),)
            request = GroupRequest(task, 0, number, size, purpose, 1.0)
            found.append(Group(request, tuple(rollouts), lost))
        return found

    def metrics(self, step, total, groups):
        rollouts = [r for g in groups for r in g.rollouts]
        rng = self.rng
        return rollout_metrics(rollouts, [d for g in groups for d in g.discarded]) | {
            "step": float(step), "total_steps": float(total), "version": float(step), "groups_trained": 6.0,
            "zero_variance_groups/all_right": float(step // 4), "groups_lost": 0.0,
            "staleness_mean": rng.random(), "staleness_max": 1.0, "sync_pause_s": rng.uniform(0.05, 0.2),
            "sync_total_s": rng.uniform(0.3, 0.6), "sync_bytes": 2.2e6, "canary_gap": rng.uniform(1e-6, 3e-6),
            "loss": rng.gauss(0, 0.02), "grad_norm": rng.uniform(0.5, 1.5), "learning_rate": 1e-4,
            "entropy": 0.8 - 0.02 * step, "importance_ratio_mean": 1.0, "logprob_gap": rng.uniform(1e-6, 5e-6),
            "clipped_share": 0.01, "time_wait_s": rng.uniform(4, 8), "time_learn_s": rng.uniform(2, 3),
            "time_sync_s": 0.5, "time_step_s": rng.uniform(13, 15), "elapsed_s": 11.0 * step,
        }  # fmt: skip

    def job(self, **changes) -> JobSpec:
        tool = {
            "name": "search",
            "server_url": "https://user:pw-secret@tools.example/search?key=query-secret",
            "headers": {"Authorization": "Bearer header-secret"},
            "api_key": "extra-secret",
        }
        grader = {"type": "endpoint", "url": "https://grade.example/?token=url-secret", "headers": {"X": "x-secret"}}
        method = {"type": "reinforcement", "reinforcement": {"tools": [tool], "grader": grader}}
        return JobSpec.model_validate({"model": "base", "training_file": "train.jsonl", "method": method} | changes)

    def play(self, sink, folder=None, steps=12, total=12, validation_every=4, test=True, rows=8, hostile=False):
        """Report what a driver and a loop report, in order; with `folder` a test file is graded too."""
        if folder is not None:
            job = self.job(suffix="ledger")
            folder.write_job(job, resolve_plan(job, 480, 10**9)[0], {"context_length": 2048})
        if test and folder is not None:
            self.evaluate(sink, "test-before", self.groups(rows, 1, "test", 0, 0.0, hostile), 0)
        if validation_every:
            self.validate(sink, 0, 0.0)
        for step in range(1, steps + 1):
            skill = step / total
            groups = self.groups(6, 4, "train", step - 1, skill)
            sink.emit_groups(f"step-{step:06d}", groups)
            metrics = self.metrics(step, total, groups)
            if validation_every and step % validation_every == 0:
                metrics |= self.validate(sink, step, skill) | {"time_eval_s": 3.0}
                sink.emit(CheckpointSaved(step=step, path=f"checkpoints/step-{step:06d}", num_bytes=10))
            sink.emit(StepDone(step=step, total_steps=total, metrics=metrics))
        if test and folder is not None and steps == total:
            self.evaluate(sink, "test-after", self.groups(rows, 1, "test", total, 1.0, hostile), total)

    def validate(self, sink, step, skill):
        evaluation = self.evaluate(sink, "validation", self.groups(8, 2, "validation", step, skill), step)
        return {"full_valid_mean_reward": evaluation.reward, "full_valid_mean_grade": evaluation.grade}

    def evaluate(self, sink, name, groups, step):
        evaluation = summarize(groups, groups[0].request.size, 1.0)
        sink.emit_groups(f"{name}-{step:06d}" if name == "validation" else name, groups)
        sink.emit(Evaluated(step=step, name=name, evaluation=evaluation, training_groups_in_flight=2))
        return evaluation

    def run(self, path, **how) -> RunFolder:
        """A complete run on disk."""
        folder = RunFolder(path)
        self.play(stream_of(folder, group_sinks=[folder]), folder, **how)
        folder.close()
        assert folder.problems == []
        return folder
