"""Recipes: the TOML table that says what to build, for which machines and how, read and evaluated into targets.

Start with `model`, a recipe as it is written, then `target`, each of which is one wheel to build.
"""
