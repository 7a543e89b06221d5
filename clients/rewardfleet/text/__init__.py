"""What a policy wrote, read once: turns, thoughts, the answer, and how it ends.

It imports nothing of this project, so that everything may import it.
"""

from .reading import Reading, Thought, Turn, read, without_end_tokens

__all__ = ["Reading", "Thought", "Turn", "read", "without_end_tokens"]
