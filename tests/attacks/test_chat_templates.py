"""Chat templates that are attacks: each ends in an error within a budget, and the next template renders."""

from __future__ import annotations

import asyncio
import resource
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent_rft.chat.template import ChatTemplate, RenderFailed, TemplateLimits
from tests.support.budget import budget
from tests.support.fakes_http import until

LIMITS = TemplateLimits(time_s=0.1, memory_bytes=128 << 20, text_bytes=1 << 20)
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
NUM_THREADS = 50

COSTLY: dict[str, str] = {
    "nested ranges": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a range without end": "{% for a in range(10 ** 12) %}{% endfor %}",
    "a long loop that writes": "{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    "a macro that calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a macro that calls itself two times": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
    "a loop that calls itself": "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "a huge power": "{{ 9 ** (9 ** 9) }}",
    "a power of a message": "{{ (messages | length + 8) ** (9 ** 9) }}",
    "a huge text": "{{ messages[0].content * 10 ** 10 }}",
    "a huge constant": "{{ 'x' * 10 ** 10 }}",
    "a text that doubles": (
        "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}"
    ),
    "lists that hold two of the last": (
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}"
    ),
    "a list that doubles": (
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"
    ),
    "a wide text": "{{ messages[0].content.center(10 ** 10) }}",
    "a wide text by a filter": "{{ messages[0].content | center(10 ** 10) }}",
    "a wide number": "{{ '%09999999999d' % messages | length }}",
    "a wide value of format": "{{ '{:>9999999999}'.format(messages | length) }}",
    "a wide value of format_map": "{{ '{a:>9999999999}'.format_map({'a': 1}) }}",
    "an indentation": "{{ messages | tojson(indent=10 ** 10) }}",
    "a join": "{{ range(99999) | join(messages[0].content * 99999) }}",
    "a text that replaces itself": "{% set x = 'x' * 99999 %}{{ x.replace('x', x) }}",
    "a list of the filter batch": "{{ [1] | batch(10 ** 9, 'x') | list }}",
    "a list of the filter slice": "{{ [1] | slice(10 ** 9) | list }}",
    "a huge lorem ipsum": "{{ lipsum(n=10 ** 9) }}",
    "a pattern of time": "{{ strftime_now('%c' * 10 ** 8) }}",
    "brackets": "{{ " + "[" * 30_000 + "]" * 30_000 + " }}",
    "parentheses": "{{ " + "(" * 30_000 + ")" * 30_000 + " }}",
    "signs": "{{ " + "-" * 60_000 + "1 }}",
    "a sum": "{{ 1" + "+1" * 30_000 + " }}",
    "attributes": "{{ a" + ".a" * 30_000 + " }}",
    "filters": "{{ a" + "|e" * 30_000 + " }}",
    "conditions": "{% if 1 %}" * 3_000 + "{% endif %}" * 3_000,
    "an open bracket": "{{ " + "[" * 60_000,
    "digits": "{{ " + "9" * 60_000 + " }}",
    "many variables": "".join(f"{{% set a{i} = {i} %}}" for i in range(3_000)) + "{{ a.b }}",
}


@pytest.mark.parametrize("text", COSTLY.values(), ids=COSTLY)
def test_a_template_costs_little_and_ends_in_an_error(text: str) -> None:
    with (
        budget(cpu_s=1.0, mib=20),
        ChatTemplate(text, limits=LIMITS) as template,
        pytest.raises(RenderFailed) as caught,
    ):
        template.render(MESSAGES, (), generate=True)
    assert len(caught.value.message) < 600


def test_the_next_render_is_good() -> None:
    """The values decide what this one costs."""
    text = (
        "{% for m in messages %}{{ m.content * m.times }}{% for a in range(m.loops) %}{{ '' }}{% endfor %}{% endfor %}"
    )
    attacks = {"too_large": (5 << 20, 0), "memory": (1 << 30, 0), "failed": (1, 10**9), "too_slow": (1, 99_999)}
    with ChatTemplate(text, limits=LIMITS) as template:
        for kind, (times, loops) in attacks.items():
            message = {"content": "x", "times": times, "loops": loops}
            with budget(cpu_s=1.0, mib=20), pytest.raises(RenderFailed) as caught:
                template.render([message] * 300, (), generate=True)
            assert caught.value.kind == kind and caught.value.fix
            good = {"content": "ab", "times": 2, "loops": 3}
            assert template.render([good], (), generate=True) == "abab"


ESCAPES: dict[str, str] = {
    "the class of a text": "{{ ''.__class__.__mro__ }}",
    "the filter attr": "{{ (''|attr('__class__')).__mro__ }}",
    "an item": "{{ ''['__class__']['__mro__'] }}",
    "the filter map": "{{ ['']|map(attribute='__class__.__mro__')|list|first|first }}",
    "the globals of a function": "{{ raise_exception.__globals__['os'].environ }}",
    "the globals of a class": "{{ cycler.__init__.__globals__.os.environ }}",
    "the code of a macro": "{% macro f() %}{% endmacro %}{{ f._func.__code__.co_code }}",
    "the template itself": "{{ self._TemplateReference__context.environment.from_string('x') }}",
    "str.format": "{{ '{0.__class__.__mro__}'.format('') }}",
    "str.format by a filter": "{{ ('{0.__class__.__mro__}'|attr('format'))('') }}",
    "str.format by a reference": "{% set f = '{0.__class__.__mro__}'.format %}{{ f('') }}",
    "str.format_map": "{{ '{a.__class__.__mro__}'.format_map({'a': ''}) }}",
    "a generator": "{{ (messages|map('upper')).gi_frame.f_globals }}",
    "a list that is changed": "{{ messages.append(1) }}",
    "a file of templates": "{% include '/etc/passwd' %}",
    "an import": "{% import 'os' as os %}",
    "a parent": "{% extends '/etc/passwd' %}",
}


@pytest.mark.parametrize("text", ESCAPES.values(), ids=ESCAPES)
def test_a_template_cannot_leave_its_sandbox(text: str) -> None:
    with ChatTemplate(text, limits=LIMITS) as template, pytest.raises(RenderFailed) as caught:
        template.render(MESSAGES, (), generate=True)
    assert caught.value.kind == "failed"


def test_there_is_nothing_to_find_outside_of_the_sandbox() -> None:
    with ChatTemplate("x", limits=LIMITS) as template:
        template.render(MESSAGES, (), generate=True)
        process = psutil.Process(template.pid)
        assert Path(f"/proc/{process.pid}/environ").read_bytes() == b""
        assert process.num_fds() == 3
        limits = {"RLIMIT_NOFILE": 0, "RLIMIT_NPROC": 0, "RLIMIT_CORE": 0, "RLIMIT_AS": LIMITS.memory_bytes}
        for name, value in limits.items():
            assert process.rlimit(getattr(resource, name)) == (value, value)


CODECS = ("utf_16", "idna", "punycode", "cp1252", "rot13", "zlib", "mbcs", "unicode_escape", "/etc/passwd", "../x")
NEED_FILES: dict[str, str] = {
    **{f"the codec {name}": f"{{{{ 'a'.encode('{name}') }}}}" for name in CODECS},
    **{f"decoding by {name}": f"{{{{ 'a'.encode().decode('{name}') }}}}" for name in CODECS},
    "a file of templates": "{% include '/etc/passwd' %}",
    "a time": "{{ strftime_now('%c %x %Z') }}",
    "a wrong argument": "{{ messages | join(cycler) | int(base=messages) }}",
    "a wrong call": "{{ strftime_now() }}",
    "its functions": "{{ cycler }} {{ raise_exception }} {{ strftime_now }} {{ lipsum }} {{ self }} {{ joiner }}",
    "an error with its functions": "{{ raise_exception([cycler, raise_exception, lipsum, namespace, joiner]) }}",
    "a missing value": "{{ messages.x.y }}",
}


@pytest.mark.parametrize("text", NEED_FILES.values(), ids=NEED_FILES)
def test_neither_an_error_nor_a_text_shows_a_path(text: str) -> None:
    with ChatTemplate(text, limits=LIMITS) as template:
        try:
            shown = template.render(MESSAGES, (), generate=True)
        except RenderFailed as error:
            shown = f"{error} {error.message} {error.public_message} {error.fix}"
    for path in ("site-packages", "/usr", "/work", "/home", "/lib", "/tmp", "Errno", ".py"):
        assert path not in shown


FILTERS = {
    "abs": "1",
    "attr": "m|attr('x')",
    "batch": "[1]|batch(2)|list",
    "dictsort": "m|dictsort",
    "filesizeformat": "9999|filesizeformat",
    "groupby": "[m]|groupby('a')|list",
    "indent": "x|indent(2, true)",
    "int": "'x'|int(3)",
    "lipsum": "lipsum(1)",
    "pprint": "m|pprint",
    "random": "[1]|random",
    "reject": "[1]|reject('odd')|list",
    "round": "1.5|round(method='ceil')",
    "striptags": "x|striptags",
    "unescape": "(x|escape).unescape()",
    "tojson": "m|tojson(indent=2)",
    "truncate": "x|truncate(3)",
    "urlencode": "m|urlencode",
    "urlize": "'see https://a.example b@c.example'|urlize",
    "wordcount": "x|wordcount",
    "wordwrap": "x|wordwrap(2)",
    "xmlattr": "m|xmlattr",
    "format": "'%s'|format(x)",
}


def test_filters_that_import_modules_work() -> None:
    """All filters of Jinja that may import a module, and those that a template commonly uses."""
    text = "{% set x = '<b>&lt; words</b>' %}{% set m = {'a': 'b'} %}" + "".join(
        f"{{% if name == '{name}' %}}{{{{ {expression} }}}}{{% endif %}}" for name, expression in FILTERS.items()
    )
    with ChatTemplate(text, limits=LIMITS) as template:
        shown = {name: template.render(MESSAGES, (), generate=True, name=name) for name in FILTERS}
    assert shown["striptags"] == "< words" and shown["pprint"] == "{'a': 'b'}"
    assert all(text for name, text in shown.items() if name != "attr")


@pytest.mark.parametrize("text", ["\ud800", "{{ '\\ud800' }}", "{{ messages[1].content }}", "{{ messages | tojson }}"])
def test_a_text_that_no_tokenizer_takes_is_an_error(text: str) -> None:
    messages = [*MESSAGES, {"role": "user", "content": "\udfff"}]
    with ChatTemplate(text, limits=LIMITS) as template, pytest.raises(RenderFailed, match="surrogates not allowed"):
        template.render(messages, (), generate=True)


def test_values_that_no_json_has_are_an_error() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with ChatTemplate("x", limits=LIMITS) as template:
        for value in (cycle, deep, object(), {(1, 2): 3}):
            with pytest.raises(RenderFailed):
                template.render(MESSAGES, (), generate=True, value=value)
        assert template.render(MESSAGES, (), generate=True) == "x"


def test_many_renders_at_once_get_their_own_texts() -> None:
    with ChatTemplate("{{ messages[0].content }}") as template, ThreadPoolExecutor(NUM_THREADS) as threads:

        def render(i: int) -> str:
            return template.render([{"content": f"{i}" * 1000}], (), generate=True)

        assert list(threads.map(render, range(NUM_THREADS))) == [f"{i}" * 1000 for i in range(NUM_THREADS)]


def test_a_process_that_somebody_ended_is_replaced() -> None:
    with ChatTemplate("{{ messages[0].content }}") as template:
        for _ in range(2):
            assert template.render(MESSAGES, (), generate=True) == "hello"
            psutil.Process(template.pid).kill()
        assert template.render(MESSAGES, (), generate=True) == "hello"


def test_a_process_that_is_silent_is_replaced() -> None:
    with ChatTemplate("{{ messages[0].content }}", limits=TemplateLimits(answer_timeout_s=3)) as template:
        assert template.render(MESSAGES, (), generate=True) == "hello"
        stopped = template.pid
        psutil.Process(stopped).suspend()
        assert template.render(MESSAGES, (), generate=True) == "hello"
        assert template.pid not in (None, stopped)


async def test_a_render_whose_process_is_ended_each_time_is_an_error() -> None:
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    with ChatTemplate(endless, limits=TemplateLimits(time_s=30)) as template:
        rendering = asyncio.create_task(asyncio.to_thread(template.render, MESSAGES, (), generate=True))
        ended: set[int] = set()
        while len(ended) < 2:
            await until(lambda: template.pid not in {None, *ended}, within_s=60)
            pid = template.pid
            assert pid is not None
            psutil.Process(pid).send_signal(signal.SIGKILL)
            ended.add(pid)
        with pytest.raises(RenderFailed, match="failed twice: exit status -9"):
            await rendering
