"""The commands that need the server's packages."""
