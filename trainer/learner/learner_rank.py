"""One rank of the learner: a model under DeepSpeed. All ranks of a group must call each method together.

An update uses the gradient of one loss over all trained tokens of all micro-batches on all ranks. DeepSpeed averages
gradients over ranks, so each rank multiplies its loss by the number of ranks. Steps use no random numbers. On a CPU,
the same sequences give bitwise equal results.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch import distributed as dist

from agent_rft.errors import EngineFailed, TrainingHalted
from agent_rft.trainer.algorithm import objective
from agent_rft.trainer.algorithm.objective import Sums
from agent_rft.trainer.algorithm.schedule import learning_rate
from agent_rft.trainer.learner.checkpoint_weights import CheckpointWeights, ParameterNames
from agent_rft.trainer.learner.host_buffer import HostBuffer, lock_pages_for_cuda
from agent_rft.trainer.learner.memory_offload import CpuOffload
from agent_rft.trainer.learner.optimizer_state import RankState, SnapshotMemory
from agent_rft.trainer.learner.process_group import SENDER, BroadcastGroup, join_rank_group
from agent_rft.trainer.learner.rank_config import LearnerConfig, create_deepspeed_engine, create_reference_model
from agent_rft.trainer.learner.rank_memory_sizes import OFFLOAD_SLACK
from agent_rft.trainer.learner.training_model import TrainingModel, partition_on_read
from agent_rft.trainer.learner.weight_buckets import TensorInfo, num_bytes
from agent_rft.trainer.model.grammar_masks import GrammarMasks
from agent_rft.trainer.model.lora import as_reference, get_adapter_tensors
from agent_rft.trainer.model.micro_batches import MicroBatch, TokenMasks, pack_sequences
from agent_rft.trainer.model.model_probe import can_share_prefixes, check_model
from agent_rft.trainer.model.onednn_matmul import enable_onednn_matmul
from agent_rft.trainer.model.policy import DeviceBatch, Policy
from agent_rft.types import LayoutConversion, LearnerLayout, StepReport, TrainSegment

MAX_SKIPPED_UPDATES = 2
"""Maximum number of consecutive updates that are skipped because a gradient is not finite. In bfloat16, a single such
gradient may be chance, but three in a row indicate a bug."""
PEERS_TIMEOUT_S = 86_400.0
"""Timeout of calls that wait for other ranks. It can be long, because the learner group detects hangs much earlier."""


class LearnerRank:
    """Learner rank number `rank` of `world_size`. All ranks connect to `address`, a host:port of rank 0."""

    def __init__(self, config: LearnerConfig, rank: int = 0, world_size: int = 1, address: str | None = None) -> None:
        torch.set_num_threads(config.rank_cores)
        if not config.on_gpu:
            enable_onednn_matmul()
        self._config = config
        self._rank = rank
        self._world_size = world_size
        self._deepspeed = join_rank_group(config.on_gpu, PEERS_TIMEOUT_S, rank, world_size, address)
        self._device = torch.device("cuda" if config.on_gpu else "cpu")
        self._dtype: torch.dtype = getattr(torch, config.dtype)
        self._model = TrainingModel.from_folder(config.model, self._dtype, config.lora)
        policy = self._load_policy()
        if config.on_gpu:
            policy.model.gradient_checkpointing_enable({"use_reentrant": False})
        self._engine = create_deepspeed_engine(config, policy, self._deepspeed)
        check_model(self.policy, self._device)
        # The GPU kernels for packed sequences do not support prefix trees.
        self._shares = not config.on_gpu and can_share_prefixes(self.policy, self._device)
        has_reference = self._has_kl_term and config.lora is None
        self._reference = (
            create_reference_model(config, self._load_policy(), self._deepspeed) if has_reference else None
        )
        gather = self._deepspeed.zero.GatheredParameters if config.effective_stage == 3 else lambda _: nullcontext()
        adapter = None if config.lora is None else get_adapter_tensors(policy)
        self._weights = CheckpointWeights(policy.model, self._dtype, gather, adapter)
        self._parts: list[ParameterNames] = []
        self._broadcast: BroadcastGroup | None = None
        self._grammars = GrammarMasks(config.model, config.stop_token_ids, config.rank_cores)
        lock_pages = lock_pages_for_cuda if config.on_gpu else None
        self._bucket = HostBuffer(lock_pages)
        layout = LearnerLayout(world_size, config.effective_stage, config.dtype)
        memory = SnapshotMemory(lock_pages)
        self._state = RankState(self._engine, rank, layout, self._weights, self._model, config.files, memory)
        self._cpu_offload = CpuOffload(self._device, HostBuffer(lock_pages, OFFLOAD_SLACK))
        self._step = 0
        self._skipped = 0

    # -- training ------------------------------------------------------------------------------------------------------

    def step(self, updates: Sequence[Sequence[MicroBatch]], version: int) -> StepReport:
        """Run one optimizer step per element of `updates`, starting at policy `version`.

        Each element contains this rank's micro-batches of one mini-batch. With several updates, all proximal
        log-probabilities are computed before the first update. With one update, the proximal log-probabilities come
        from the update's own forward pass.

        Raises:
            TrainingHalted: Three updates in a row had a gradient that is not finite.
        """
        rate = learning_rate(
            self._step,
            total=self._config.steps,
            base=self._config.learning_rate,
            schedule=self._config.lr_schedule,
            warm_up=self._config.warm_up_steps,
        )
        for group in self._engine.optimizer.param_groups:
            group["lr"] = rate
        constrained = [[self._grammars.constrain(batch) for batch in update] for update in updates]
        batches = [[self._to_device_batch(batch, masks) for batch, masks in update] for update in constrained]
        denominators = self._sum_over_ranks([sum(batch.total_weight for batch, _ in update) for update in constrained])
        proximal = self._compute_proximal_logprobs(batches)
        sums: Sums = {}
        norms: list[float] = []
        applied = 0
        for update, update_proximal, denominator in zip(batches, proximal, denominators, strict=True):
            for batch, batch_proximal in zip(update, update_proximal, strict=True):
                loss, parts = self._compute_loss(batch, batch_proximal, denominator, version)
                self._engine.backward(loss * self._world_size, scale_wrt_gas=False)
                for name, value in parts.items():
                    sums[name] = sums.get(name, torch.zeros((), device=self._device)) + value
            self._engine.step()
            norms.append(float(self._engine.get_global_grad_norm()))
            applied += self._check_update_applied()
        self._step += 1
        computed = sum(len(batch.token_ids) for update in batches for batch in update)
        metrics = self._metrics(sums, [batch for update in updates for batch in update], computed, len(updates))
        metrics |= {"grad_norm": sum(norms) / len(norms), "learning_rate": rate}
        return StepReport(metrics, applied > 0)

    def _to_device_batch(self, batch: MicroBatch, masks: TokenMasks | None = None) -> DeviceBatch:
        return DeviceBatch.from_micro_batch(batch, self._device, masks, share=self._shares)

    def _compute_loss(
        self, batch: DeviceBatch, proximal: Tensor | None, denominator: float, version: int
    ) -> tuple[Tensor, Sums]:
        reference = self._compute_reference_logprobs(batch)
        with self._offload_activations():
            logprobs, entropies = self._engine(batch=batch)
        if self._config.method == "supervised":
            loss, sums = objective.sft_loss(batch, logprobs, denominator)
        else:
            proximal = logprobs.detach() if proximal is None else proximal
            loss, sums = objective.rl_loss(batch, logprobs, proximal, reference, self._config.algorithm, denominator)
            sums |= objective.sum_logprob_gaps(batch, proximal, version)
        return loss, sums | {"loss": loss.detach(), "entropy": entropies.sum()}

    def _offload_activations(self) -> AbstractContextManager[Any]:
        """Return a context manager that stores activations in host memory if the job offloads them."""
        if self._config.offload != "optimizer_and_activations":
            return nullcontext()
        return torch.autograd.graph.save_on_cpu(pin_memory=self._config.on_gpu)

    def _compute_reference_logprobs(self, batch: DeviceBatch) -> Tensor | None:
        if not self._has_kl_term:
            return None
        if self._config.lora is not None:  # the policy contains the reference model
            with as_reference(self.policy):
                return self._compute_logprobs(batch)
        assert self._reference is not None
        with torch.no_grad():
            logprobs: Tensor = self._reference(batch=batch)[0]
        return logprobs

    def _compute_proximal_logprobs(self, batches: Sequence[Sequence[DeviceBatch]]) -> list[list[Tensor | None]]:
        if len(batches) == 1 or self._config.method == "supervised":
            return [[None] * len(update) for update in batches]
        return [[self._compute_logprobs(batch) for batch in update] for update in batches]

    def _compute_logprobs(self, batch: DeviceBatch) -> Tensor:
        self._engine.eval()  # under ZeRO-3, a forward pass without a backward pass must not enter the parameter trace
        with torch.no_grad():
            logprobs: Tensor = self._engine(batch=batch)[0]
        self._engine.train()
        return logprobs

    def _check_update_applied(self) -> bool:
        applied = bool(self._engine.was_step_applied())
        self._skipped = 0 if applied else self._skipped + 1
        if self._skipped > MAX_SKIPPED_UPDATES:
            raise TrainingHalted(f"{self._skipped} updates in a row had a gradient that is not finite")
        return applied

    def _metrics(
        self, sums: Sums, batches: Sequence[MicroBatch], num_computed: int, num_updates: int
    ) -> dict[str, float]:
        counts = [
            sum(batch.num_trained for batch in batches),
            sum(batch.num_tokens for batch in batches),
            sum(batch.num_useful for batch in batches),
            num_computed,
        ]
        names = sorted(sums)
        totals = self._sum_over_ranks([*counts, *(float(sums[name]) for name in names)])
        trained, packed, useful, computed = totals[: len(counts)]
        total = dict(zip(names, totals[len(counts) :], strict=True))
        return objective.step_means(total, trained) | {
            "loss": total["loss"] / num_updates,
            "trained_tokens": trained,
            "computed_tokens": computed,
            "padding_efficiency": useful / packed,
            "num_micro_batches": float(len(batches)),
        }

    def _sum_over_ranks(self, numbers: Sequence[float]) -> list[float]:
        """Sum each number over all ranks, and return the sums, which are equal on all ranks."""
        tensor = torch.tensor(numbers, dtype=torch.float64, device=self._device)
        dist.all_reduce(tensor)
        return [float(number) for number in tensor.tolist()]

    # -- evaluation ----------------------------------------------------------------------------------------------------

    def logprobs(
        self, token_ids: NDArray[np.int32], experts: NDArray[np.integer[Any]] | None = None
    ) -> NDArray[np.float32]:
        """Return log-probabilities [T - 1] of all tokens [T] except the first, at temperature 1.

        They can be compared with an engine's log-probabilities of a prompt. The layers of a mixture of experts use
        `experts`, as in `TrainSegment`; None: they choose the experts.
        """
        zeros, mask = np.zeros(len(token_ids), np.float32), np.arange(len(token_ids)) > 0
        unknown = np.full(len(token_ids), -1, np.int32)
        sequence = TrainSegment(token_ids, mask, zeros, unknown, advantage=0.0, experts=experts)
        [[micro_batch]] = pack_sequences([sequence], num_ranks=1, budget=self._config.micro_batch_tokens)
        head = self.policy.model.get_output_embeddings()
        sampling, head.temperature = head.temperature, 1.0
        try:
            logprobs: NDArray[np.float32] = (
                self._compute_logprobs(DeviceBatch.from_micro_batch(micro_batch, self._device)).cpu().numpy()
            )
        finally:
            head.temperature = sampling
        return logprobs

    def supervised_loss(self, micro_batches: Sequence[MicroBatch]) -> float:
        """Return the weighted mean cross-entropy of all ranks' micro-batches, without training on them."""
        batches = [self._to_device_batch(batch) for batch in micro_batches]
        losses = [float(objective.sft_loss(batch, self._compute_logprobs(batch), 1.0)[0]) for batch in batches]
        loss, weight = self._sum_over_ranks([sum(losses), sum(batch.total_weight for batch in micro_batches)])
        return loss / weight

    # -- weights and state ---------------------------------------------------------------------------------------------

    def bucket_plan(self, max_bytes: int) -> list[list[TensorInfo]]:
        """Divide the weights into buckets; return name, dtype and shape of each tensor in each bucket, in order.

        The names are the names in the model's checkpoint; tied weights occur once. A bucket holds at most `max_bytes`,
        or a single larger parameter. `gather_bucket` returns the bytes of a bucket.
        """
        self._parts = self._weights.split(max_bytes)
        plan = [self._weights.describe(part) for part in self._parts]
        if self._rank == 0:
            self._bucket.allocate_slices([max(map(num_bytes, plan))])  # allocates it for all buckets
        return plan

    def gather_bucket(self, index: int) -> NDArray[np.uint8] | None:
        """Gather bucket `index` of the most recent plan. Return its bytes on rank 0, and None on other ranks.

        The next call overwrites these bytes.
        """
        return self._weights.copy_bucket(self._parts[index], self._bucket if self._rank == 0 else None)

    def open_broadcast(self, address: str, size: int) -> None:
        """Open a broadcast group of `size` members at `address`: this rank, which sends, and the engines.

        The new group replaces the previous group.

        Raises:
            EngineFailed: Not all members joined.
        """
        try:
            if (previous := self._broadcast) is not None:
                self._broadcast = None
                previous.close()
            self._broadcast = BroadcastGroup(address, SENDER, size, self._device)
        except RuntimeError as error:  # torch's errors of stores and groups derive from it
            what = "cannot connect to the engines to broadcast the weights"
            raise EngineFailed(f"{what}: {error}", public_message=what) from error

    def broadcast_bucket(self, bucket: NDArray[np.uint8]) -> None:
        """Broadcast a bucket of weights to the engines. `bucket` is the result of `gather_bucket`.

        Raises:
            EngineFailed: A member of the broadcast group is lost.
        """
        assert self._broadcast is not None
        try:
            self._broadcast.send(torch.tensor(bucket))
        except RuntimeError as error:
            what = "a broadcast to the engines failed"
            raise EngineFailed(f"{what}: {error}", public_message=what) from error

    def snapshot(self) -> None:
        """Copy the model and the training state to host memory, replacing the previous snapshot.

        Training can continue afterwards. Waits until the previous snapshot is no longer being written.
        """
        self._state.take_snapshot(self._step, self._skipped)

    def write_snapshot(self, folder: Path) -> None:
        """Write the snapshot into `folder`: the model for transformers and vLLM, and the training state for `load`.

        Drops the snapshot once it is written. This method may run in another thread, concurrently with other methods.

        Raises:
            OSError: The disk is full or read-only. The snapshot is kept, so it can be written again.
        """
        self._state.write(folder)

    def load(self, folder: Path) -> LayoutConversion | None:
        """Restore the weights, optimizer and schedule that `write_snapshot` saved. The learner has no random state.

        Returns the layout conversion if the folder was written with another layout, else None. With the same layout,
        further training is bitwise identical to training without an interruption.

        Raises:
            UserError: The folder is incomplete, or its weights were trained with another `lora` setting.
        """
        self._step, self._skipped, converted = self._state.load(folder)
        return converted

    def offload(self) -> None:
        """Copy the GPU memory to host memory and free it. Methods that compute cannot be called until `reload`."""
        if self._config.on_gpu:
            self._cpu_offload.offload()

    def reload(self) -> None:
        """Allocate the GPU memory again, and restore its contents.

        Raises:
            torch.OutOfMemoryError: Another process did not free the memory in time.
        """
        if self._config.on_gpu:
            self._cpu_offload.reload()

    @property
    def policy(self) -> Policy:
        policy: Policy = self._engine.module
        return policy

    def close(self) -> None:
        self._engine.destroy()
        if isinstance(self._reference, self._deepspeed.DeepSpeedEngine):
            self._reference.destroy()
        dist.destroy_process_group()

    @property
    def _has_kl_term(self) -> bool:
        return self._config.method == "reinforcement" and self._config.algorithm.kl_coef > 0

    def _load_policy(self) -> Policy:
        partitions, temperature = self._config.effective_stage == 3, self._config.algorithm.temperature
        reading = partition_on_read(self._deepspeed, self._dtype, self._device) if partitions else self._device
        return self._model.load(temperature, self._config.seed, reading, keeps_reference=self._has_kl_term)
