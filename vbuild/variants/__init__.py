"""Wheel variants as PEP 817 and PEP 825 define them: labels, properties, indexes, and which wheel a machine gets.

Start with `model`, then `document`, which knows the versions of the format.
"""
