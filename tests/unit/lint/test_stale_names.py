from __future__ import annotations

import ast

from tests.lint.stale_names import add_names, names_in


def test_a_name_that_no_code_uses_is_found_in_a_docstring() -> None:
    known: set[str] = set()
    tree = ast.parse(
        'MAX_BYTES = 1\n\n\ndef read_all(path):\n    """Call `read_once`, at most MAX_BYTES; see OLD_BYTES."""\n'
    )
    ((line, text),) = add_names(tree, known)
    assert (line, names_in(text, known)) == (5, ["OLD_BYTES", "read_once"])


def test_words_strings_and_names_of_others_are_not_stale() -> None:
    known: set[str] = set()
    add_names(
        ast.parse(
            'call("num_bytes")\n\n\nclass DiskFull:\n    """`num_bytes` and `disk_full`, as `word` or `a.b`."""\n'
        ),
        known,
    )
    assert names_in("`num_bytes` and `disk_full`, `word`, `a.b`, `DiskFull.kind`, SSL_CERT_FILE, HTTP", known) == []
