"""The command line: `main` runs it, `options` has the common code, every other file is a family of commands."""
