"""One module per family of vision-language models."""
