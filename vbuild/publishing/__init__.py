"""What an index and its users expect of a folder of files before it is published: one rule a function."""
