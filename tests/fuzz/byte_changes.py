"""Bytes that are replaced, inserted, cut out, doubled, moved, or cut off."""

from tests.fuzz.target import LONGEST

WAYS = ("replace", "insert", "cut", "double", "move", "end")


def mutant(data: bytes, changes: list[tuple[str, float, float, bytes]]) -> bytes:
    for way, first, second, piece in changes:
        start = int(first * len(data))
        # pieces are short more often than not
        stop = start + int(second**4 * (len(data) - start))
        match way:
            case "replace":
                data = data[:start] + piece + data[start + len(piece) :]
            case "insert":
                data = data[:start] + piece + data[start:]
            case "cut":
                data = data[:start] + data[stop:]
            case "double":
                data = data[:stop] + data[start:]
            case "move":
                data = data[:start] + data[stop:] + data[start:stop]
            case _:
                data = data[:stop]
    return data[:LONGEST]
