"""Wheels whose ``.dist-info`` files contradict the wheel, or name places that no wheel may write to.

TOLD -> what the attack is called -> the archive
"""

import dataclasses

from tests.factories.hostile_zips import INFO, NAME, Entry, archive, wheel_of
from tests.factories.wheels import everything, record_of

CODE = b"def main(): print(1)\n"
A = Entry("demo/a.py", CODE)
RECORD = record_of(everything(NAME, {"demo/a.py": CODE}), INFO)
WHEEL = b"Wheel-Version: 1.0\nGenerator: demo\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
METADATA = b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n"


def with_dist_info(folder: str) -> bytes:
    """A wheel whose ``.dist-info`` folder is called *folder*."""
    whole = wheel_of(A, record=RECORD.replace(INFO, folder))
    return archive(
        [dataclasses.replace(entry, name=entry.path.replace(INFO.encode(), folder.encode())) for entry in whole]
    )


def with_member(name: str, text: bytes, *more: Entry) -> bytes:
    """A wheel whose file *name* of the ``.dist-info`` folder is *text*, with *more* members."""
    return archive(wheel_of(A, *more, Entry(f"{INFO}/{name}", text)))


def _scripts(text: str) -> bytes:
    return f"[console_scripts]\n{text}\n".encode()


_FOLDERS = {
    "of another project": "other-1.0.dist-info",
    "of another version": "demo-2.0.dist-info",
    "of an equal version": "demo-1.0.0.dist-info",
    "in other case": "Demo-1.0.dist-info",
    "without version": "demo.dist-info",
    "with a build": "demo-1.0-1.dist-info",
    "of a longer name": "demo-x-1.0.dist-info",
    "with a dot in front": ".demo-1.0.dist-info",
    "of nothing": ".dist-info",
}
_WHEELS = {
    "version 2.0": WHEEL.replace(b"1.0", b"2.0"),
    "version 1.9": WHEEL.replace(b"1.0", b"1.9"),
    "version one": WHEEL.replace(b"1.0", b"one"),
    "version 1.0.x": WHEEL.replace(b"1.0", b"1.0.x"),
    "version twice": WHEEL.replace(b"1.0\n", b"1.0\nWheel-Version: 2.0\n"),
    "version missing": WHEEL.replace(b"Wheel-Version: 1.0\n", b""),
    "root missing": WHEEL.replace(b"Root-Is-Purelib: true\n", b""),
    "root maybe": WHEEL.replace(b"true", b"maybe"),
    "root false": WHEEL.replace(b"true", b"false"),
    "root twice": WHEEL.replace(b"true\n", b"true\nRoot-Is-Purelib: false\n"),
    "tag missing": WHEEL.replace(b"Tag: py3-none-any\n", b""),
    "tag of another": WHEEL.replace(b"py3-none-any", b"cp27-cp27m-win32"),
    "tag of nothing": WHEEL.replace(b"py3-none-any", b"nothing"),
    "tag compressed": WHEEL.replace(b"py3-none-any", b"py2.py3-none-any"),
    "not UTF-8": WHEEL + b"X: \xff\n",
    "empty": b"",
    "blank line in front": b"\n" + WHEEL,
    "BOM": b"\xef\xbb\xbf" + WHEEL,
    "CRLF": WHEEL.replace(b"\n", b"\r\n"),
    "in lower case": WHEEL.lower(),
}
_METADATAS = {
    "name of another": METADATA.replace(b"demo", b"other"),
    "name in other spelling": METADATA.replace(b"demo", b"DEMO"),
    "name missing": METADATA.replace(b"Name: demo\n", b""),
    "name twice": METADATA + b"Name: other\n",
    "name twice, other first": METADATA.replace(b"Name", b"Name: other\nName"),
    "version of another": METADATA.replace(b"1.0", b"2.0"),
    "version in other spelling": METADATA.replace(b"1.0", b"1.0.0"),
    "version missing": METADATA.replace(b"Version: 1.0\n", b"", 1).replace(b"Metadata-", b"Metadata-Version: 2.1\n"),
    "version of nothing": METADATA.replace(b": 1.0", b": one"),
    "metadata version missing": METADATA.replace(b"Metadata-Version: 2.1\n", b""),
    "metadata version 9.0": METADATA.replace(b"2.1", b"9.0"),
    "not UTF-8": METADATA + b"Author: \xff\n",
    "empty": b"",
    "blank line in front": b"\n" + METADATA,
    "BOM": b"\xef\xbb\xbf" + METADATA,
    "CRLF": METADATA.replace(b"\n", b"\r\n"),
    "requirement broken": METADATA + b"Requires-Dist: !!\n",
}
_POINTS = {
    "sound": _scripts("demo = demo.a:main"),
    "up": _scripts("../../up = demo.a:main"),
    "far up": _scripts("../../../../../up = demo.a:main"),
    "absolute": _scripts("/vbuild-attack = demo.a:main"),
    "in a folder": _scripts("sub/demo = demo.a:main"),
    "backslash": _scripts("..\\demo = demo.a:main"),
    "dots": _scripts(".. = demo.a:main"),
    "python": _scripts("python = demo.a:main"),
    "python3": _scripts("python3 = demo.a:main"),
    "python3.11": _scripts("python3.11 = demo.a:main"),
    "pythonw": _scripts("pythonw = demo.a:main"),
    "python3.11.exe": _scripts("python3.11.exe = demo.a:main"),
    "PYTHON": _scripts("PYTHON = demo.a:main"),
    "activate": _scripts("activate = demo.a:main"),
    "with blanks": _scripts("de mo = demo.a:main"),
    "with a NUL": _scripts("de\0mo = demo.a:main"),
    "with a plus": _scripts("c++ = demo.a:main"),
    "with a colon": _scripts("de:mo = demo.a:main"),
    "with a colon for an equals sign": _scripts("demo : demo.a:main"),
    "with blanks in the function": _scripts("demo = demo.a : main"),
    "with a dash in the module": _scripts("demo = demo-a:main"),
    "with a method": _scripts("demo = demo.a:Demo.main"),
    "with a comment": _scripts("# demo\ndemo = demo.a:main"),
    "with a comment behind": _scripts("demo = demo.a:main # main"),
    "with a comment after a semicolon": _scripts("; demo\ndemo = demo.a:main"),
    "indented": b"\n    [console_scripts]\n    demo = demo.a:main\n    ",
    "indented in its group": _scripts("    demo = demo.a:main\n    more = demo.a:main"),
    "indented more": _scripts("demo = demo.a:main\n  more = demo.a:main"),
    "less indented": _scripts("  demo = demo.a:main\nmore = demo.a:main"),
    "with a form feed": _scripts("demo = demo.a:main\fmore = demo.a:main"),
    "with CRLF": b"[console_scripts]\r\ndemo = demo.a:main\r\n",
    "with blanks around the group": b"[ console_scripts ]\ndemo = demo.a:main\n",
    "with a bracket in front": _scripts("[demo] = demo.a:main"),
    "with a group, and more": b"[console_scripts] # all\ndemo = demo.a:main\n",
    "with a group in brackets": b"[[console_scripts]]\ndemo = demo.a:main\n",
    "with an extra of nothing": _scripts("demo = demo.a:main []"),
    "with an extra at once": _scripts("demo = demo.a:main[x]"),
    "with a line alone in another group": b"[other]\ndemo\n",
    "with nothing in another group": b"[other]\ndemo =\n",
    "with twice in another group": b"[other]\ndemo = a\ndemo = b\n",
    "with a digit in front": _scripts("demo = 2demo.a:main"),
    "with dots": _scripts("demo = demo..a:main."),
    "with a dash in front": _scripts("-demo = demo.a:main"),
    "with a comment, semicolon": _scripts("demo = demo.a:main ; main"),
    "over two lines": _scripts("demo =\n  demo.a:main"),
    "with percent": _scripts("demo = demo.a:main\n[other]\nx = %(y)s"),
    "not ASCII": _scripts("d\u00e9mo = demo.a:main"),
    "group default": b"[DEFAULT]\ndemo = demo.a:main\n[console_scripts]\n",
    "without function": _scripts("demo = demo.a"),
    "of code": _scripts("demo = demo.a:main);print(2"),
    "of code in the module": _scripts("demo = os;import demo.a:main"),
    "of nothing": _scripts(" = demo.a:main"),
    "twice": _scripts("demo = demo.a:main\ndemo = os:abort"),
    "in other case": _scripts("demo = demo.a:main\nDEMO = os:abort"),
    "in two groups": b"[console_scripts]\ndemo = demo.a:main\n[gui_scripts]\ndemo = os:abort\n",
    "group twice": _scripts("demo = demo.a:main\n[console_scripts]\nx = os:abort"),
    "without group": b"demo = demo.a:main\n",
    "not INI": b"console_scripts\n",
    "not UTF-8": _scripts("demo = demo.a:main") + b"\xff",
    "with BOM": b"\xef\xbb\xbf" + _scripts("demo = demo.a:main"),
    "of extras": _scripts("demo = demo.a:main [all]"),
    "of another group": b"[../../x]\n../../x = demo.a:main\n",
}
METADATA_ATTACKS = {
    **{f"dist-info folder {name}": with_dist_info(folder) for name, folder in _FOLDERS.items()},
    **{f"WHEEL {name}": with_member("WHEEL", text) for name, text in _WHEELS.items()},
    **{f"METADATA {name}": with_member("METADATA", text) for name, text in _METADATAS.items()},
    **{f"entry point {name}": with_member("entry_points.txt", text) for name, text in _POINTS.items()},
    "entry point over script": with_member(
        "entry_points.txt", _POINTS["sound"], Entry("demo-1.0.data/scripts/demo", b"#!python\nevil")
    ),
    "entry point over data": with_member(
        "entry_points.txt", _POINTS["sound"], Entry("demo-1.0.data/data/bin/demo", b"evil")
    ),
}
