"""reference/commands.md: each command with its usage, arguments and options, from the command line itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer

from agent_rft.cli.main import app
from agent_rft.cli.reference.catalog import EXIT_CODES
from agent_rft.cli.reference.docstrings import to_sentence
from docs.generator.markdown import code, plain, table

_INTRO = """# Commands

`agent-rft COMMAND --help` prints the same text. After `agent-rft --install-completion`, bash, zsh and fish complete
commands, options and values.

"""
_OWN = ("help", "install_completion", "show_completion")
_FORMS = {"str": "TEXT", "path": "PATH", "int": "NUMBER", "int range": "NUMBER"}
_DEFAULT_IN_HELP = re.compile(r"\(default\b")


def pages() -> dict[str, str]:
    """The page of all commands."""
    root: Any = typer.main.get_command(app)
    text = _INTRO + _options(root)
    for names, command in _commands(root, ("agent-rft",)):
        text += f"\n## `{' '.join(names)}`\n\n{_about(command)}\n\n```text\n{_usage(names, command)}\n```\n"
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        if arguments:
            rows = ((code(_metavar(p)), plain(to_sentence(p.help or ""))) for p in arguments)
            text += "\n" + table(("Argument", "Meaning"), rows)
        text += "\n" + _options(command) if _shown(command) else ""
    rows = ((code(str(number)), plain(meaning)) for number, meaning in EXIT_CODES.items())
    return {"commands.md": f"{text}\n## Exit codes\n\n{table(('Code', 'Meaning'), rows)}"}


def _commands(group: Any, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The commands and groups below a group, in the order of its help."""
    for name, command in group.commands.items():
        if not command.hidden:
            yield (*names, name), command
            if hasattr(command, "commands"):
                yield from _commands(command, (*names, name))


def _about(command: Any) -> str:
    return plain(inspect.cleandoc(command.help or ""))


def _usage(names: tuple[str, ...], command: Any) -> str:
    """The usage line; options of a group belong before its command."""
    arguments = [
        f"[{_metavar(p)}]" if not p.required else _metavar(p) for p in command.params if p.param_type_name == "argument"
    ]
    below = ["COMMAND ..."] if hasattr(command, "commands") else []
    return " ".join([*names, *(["[OPTIONS]"] if _shown(command) else []), *arguments, *below])


def _metavar(argument: Any) -> str:
    return str(argument.metavar or argument.name).upper()


def _shown(command: Any) -> list[Any]:
    """The options of a command, without those that every command has."""
    return [p for p in command.params if p.param_type_name == "option" and p.name not in _OWN and not p.hidden]


def _options(command: Any) -> str:
    context = command.context_class(command)
    rows = [
        (_spelled(option, context), _default(option), code(option.envvar or ""), plain(to_sentence(option.help or "")))
        for option in _shown(command)
    ]
    return table(("Option", "Default", "Environment", "Meaning"), rows)


def _spelled(option: Any, context: Any) -> str:
    names = ", ".join(map(code, (*option.opts, *option.secondary_opts)))
    if option.is_flag:
        return names
    form = str(option.display_type(context)).strip("<>")
    return f"{names} {_FORMS.get(form, form)}"


def _default(option: Any) -> str:
    """The default, unless the help says it in words."""
    if option.required:
        return "required"
    if option.default is None or option.is_flag or _DEFAULT_IN_HELP.search(option.help or ""):
        return ""
    return code(str(option.default))
