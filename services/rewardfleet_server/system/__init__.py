"""What the server needs of the operating system and of other processes."""
