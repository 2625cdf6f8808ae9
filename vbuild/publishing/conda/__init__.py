"""The layout conda: a channel for conda, mamba and pixi. Start with `plan`; `writing` and `reading` know the format."""
