"""The command line: `main` runs it, `options` holds what commands share, every other file is a family of commands."""
