"""Texts of any characters, as Hypothesis draws them."""

from hypothesis import strategies as st

# all but surrogates: what Hypothesis takes by default it finds out by encoding each, which takes it seconds
CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXTS = st.text(CHARACTERS)
