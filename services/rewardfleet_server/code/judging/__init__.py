"""From what a run showed to verdicts, their causes and the keys under which they are cached."""
