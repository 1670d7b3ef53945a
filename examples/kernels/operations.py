"""Operations to speed up: a PyTorch function, its reference in loops, a fast kernel in numpy, and a slow kernel.

An operation is a family (`softplus`) in a form (`rows`: its sums by row), with a constant and names of arguments.
Each family belongs either to training or to test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal

Split = Literal["train", "test"]
Form = Literal["each", "sum", "mean", "rows"]
FORMS: Final[tuple[Form, ...]] = ("each", "sum", "mean", "rows")
NAMES: Final = ("xy", "ab", "uv", "pq")
_SCALAR_FUNCTION: Final = re.compile(r"\b(max|min|abs|exp|log|sqrt|tanh)\(")
_OF_NUMPY: Final = {"max": "maximum", "min": "minimum"}
_SAID: Final[dict[Form, str]] = {"each": "{}", "sum": "sum of {}", "mean": "mean of {}", "rows": "row sums of {}"}
_REDUCED: Final[dict[Form, str]] = {
    "each": "{}",
    "sum": "torch.sum({})",
    "mean": "torch.mean({})",
    "rows": "torch.sum({}, 1)",
}


@dataclass(frozen=True, slots=True)
class Family:
    """Formula that an operation computes for each element.

    `term` is the formula for numbers, `torch` for tensors, and `array` for arrays. `array` is only needed if it is not
    enough to replace the functions in `term` by numpy's. X and Y are the arguments; C is one of `constants`.
    """

    term: str
    torch: str
    constants: tuple[float, ...] = (0,)
    array: str = ""

    @property
    def arity(self) -> int:
        return 2 if "Y" in self.term else 1


SMALL: Final = (0.1, 0.2, 0.3, 0.4)
LARGE: Final = (2, 3, 4, 5)
FAMILIES: Final[dict[Split, dict[str, Family]]] = {
    "train": {
        "relu": Family("max(X * C, 0)", "F.relu(X * C)", LARGE),
        "leaky_relu": Family("X if X > 0 else C * X", "F.leaky_relu(X, C)", SMALL, "np.where(X > 0, X, C * X)"),
        "sigmoid": Family("1 / (1 + exp(-X))", "torch.sigmoid(X)"),
        "tanh": Family("C * tanh(X)", "torch.tanh(X) * C", LARGE),
        "square": Family("X * X + C", "torch.square(X) + C", LARGE),
        "l1_loss": Family("abs(X - Y)", "F.l1_loss(X, Y, reduction='none')"),
        "mul": Family("X * Y * C", "torch.mul(X, Y) * C", LARGE),
        "add": Family("X + C * Y", "torch.add(X, Y, alpha=C)", LARGE),
        "maximum": Family("max(X, C * Y)", "torch.maximum(X, Y * C)", LARGE),
        "minimum": Family("min(X + C, Y)", "torch.minimum(X + C, Y)", LARGE),
        "sqrt": Family("sqrt(X * X + C)", "torch.sqrt(X * X + C)", LARGE),
        "gaussian": Family("exp(-X * X)", "torch.exp(-torch.square(X))"),
        "log": Family("log(C + abs(X))", "torch.log(C + torch.abs(X))", LARGE),
        "hinge": Family("max(0, C - X)", "torch.clamp_min(C - X, 0)", LARGE),
        "elu": Family("X if X > 0 else exp(X) - 1", "F.elu(X)", array="np.where(X > 0, X, np.exp(X) - 1)"),
        "threshold": Family("X if X > C else 0", "F.threshold(X, C, 0)", SMALL, "np.where(X > C, X, 0)"),
        "gate": Family("tanh(X) * Y", "torch.tanh(X) * Y"),
        "div": Family("X / (C + Y * Y)", "torch.div(X, C + Y * Y)", LARGE),
    },
    "test": {
        "silu": Family("X / (1 + exp(-X))", "F.silu(X)"),
        "softsign": Family("X / (1 + abs(X))", "F.softsign(X)"),
        "softplus": Family("log(1 + exp(X))", "F.softplus(X)"),
        "clamp": Family("max(-C, min(C, X))", "torch.clamp(X, -C, C)", LARGE),
        "mse_loss": Family("(X - Y) * (X - Y)", "F.mse_loss(X, Y, reduction='none')"),
        "hypot": Family("sqrt(X * X + Y * Y)", "torch.hypot(X, Y)"),
        "lerp": Family("X + C * (Y - X)", "torch.lerp(X, Y, C)", SMALL),
        "margin": Family("max(0, C - X * Y)", "F.relu(C - X * Y)", LARGE),
        "hardshrink": Family("X if abs(X) > C else 0", "F.hardshrink(X, C)", SMALL, "np.where(np.abs(X) > C, X, 0)"),
        "tanhshrink": Family("X - tanh(X)", "F.tanhshrink(X)"),
        "soft_margin": Family("log(1 + exp(-X * Y))", "F.softplus(-X * Y)"),
    },
}


@dataclass(frozen=True, slots=True)
class Operation:
    """Family in a form, with a constant and two argument names."""

    split: Split
    family: str
    form: Form
    constant: float
    names: str

    @property
    def _family(self) -> Family:
        return FAMILIES[self.split][self.family]

    @property
    def arguments(self) -> str:
        """Argument names, such as `x, y`."""
        return ", ".join(self.names[: self._family.arity])

    @property
    def num_axes(self) -> int:
        return 2 if self.form == "rows" else 1

    @property
    def reference(self) -> str:
        """Function in loops, which the model must make faster, with its formula in a comment."""
        term, first = self._element, self.names[0]
        if self.form == "each":
            body = ["out = []", f"for i in range(len({first})):", f"    out.append({term})", "return out"]
        elif self.form == "rows":
            inner = ["    s = 0", f"    for j in range(len({first}[i])):", f"        s += {term}", "    out.append(s)"]
            body = ["out = []", f"for i in range(len({first})):", *inner, "return out"]
        else:
            result = f"s / len({first})" if self.form == "mean" else "s"
            body = ["s = 0", f"for i in range(len({first})):", f"    s += {term}", f"return {result}"]
        formula = f"# {_SAID[self.form].format(self._with(self._family.term))}"
        return "\n    ".join([f"def ref({self.arguments}):", formula, *body])

    @property
    def fast(self) -> str:
        array = self._family.array or _SCALAR_FUNCTION.sub(
            lambda found: f"np.{_OF_NUMPY.get(found[1], found[1])}(", self._family.term
        )
        wraps = {"each": "{}", "sum": "np.sum({})", "mean": "np.mean({})", "rows": "np.sum({}, axis=1)"}
        return self._kernel(wraps[self.form].format(self._with(array)))

    @property
    def slow(self) -> str:
        """Kernel with a loop in one line."""
        term, first = self._element, self.names[0]
        if self.form == "rows":
            return self._kernel(f"[sum({term} for j in range(len({first}[i]))) for i in range(len({first}))]")
        term = f"({term})" if " if " in term and self.form != "each" else term
        loop = f"{term} for i in range(len({first}))"
        forms = {"each": f"[{loop}]", "sum": f"sum({loop})", "mean": f"sum({loop}) / len({first})"}
        return self._kernel(forms[self.form])

    @property
    def torch(self) -> str:
        """PyTorch function that `reference` implements in loops."""
        tensor = self._with(self._family.torch)
        return f"def ref({self.arguments}):\n    return {_REDUCED[self.form].format(tensor)}"

    @property
    def _element(self) -> str:
        index = "[i][j]" if self.form == "rows" else "[i]"
        return self._with(self._family.term, index)

    def _with(self, text: str, index: str = "") -> str:
        values = {name: f"{given}{index}" for name, given in zip("XY", self.names, strict=True)} | {
            "C": f"{self.constant:g}"
        }
        return re.sub(r"\b[XYC]\b", lambda found: values[found[0]], text)

    def _kernel(self, result: str) -> str:
        return f"def kernel({self.arguments}): return {result}"


def operations(split: Split) -> Iterator[Operation]:
    """Yield all operations of a split."""
    for name, family in FAMILIES[split].items():
        for form, constant, names in product(FORMS, family.constants, NAMES):
            yield Operation(split, name, form, constant, names)
