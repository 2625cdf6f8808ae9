"""The layout conda: a channel for conda, mamba and pixi. Start with `plan`; `package` and `channel` know formats."""
