"""The sandbox `jail`: programs run on this machine, each in a fork that can do no harm."""
