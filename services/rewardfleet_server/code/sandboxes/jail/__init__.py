"""The sandbox `jail`: programs run on this machine, each in an isolated process."""
