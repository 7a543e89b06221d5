"""What tests ask of a program, read and parsed once for all samples of a problem."""
