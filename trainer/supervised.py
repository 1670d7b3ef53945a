"""Supervised fine-tuning: cross-entropy on the assistant's tokens of whole conversations, tools included."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from trainer.batch import WeightedSequence
from trainer.chat import Renderer
from trainer.checkpoint import Checkpoints, LoopState
from trainer.data import RowOrder
from trainer.errors import Halted
from trainer.protocols import EventSink, SupervisedLearner
from trainer.spec import Plan, SupervisedAlgorithm
from trainer.types import Task
