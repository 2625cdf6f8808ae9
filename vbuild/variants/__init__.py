"""Wheel variants as PEP 817 and PEP 825 define them: labels, properties, indexes, and which wheel a machine gets.

Start with `model`, then `document`, the only module that knows the schema's versions. The commands stamp, index and
select are the modules of these names.
"""
