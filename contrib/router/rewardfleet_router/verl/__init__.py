"""The router in verl: a worker, a rollout, and a hook for `RayPPOTrainer.fit`.

```sh
python -m rewardfleet_router.verl data.train_files=… router.enable=true …
```

Modules: `trainer` (the hook), `worker` (the actor with the head), `reward` (scores of the tools
service), `hf_rollout` (generation without an inference engine), `cpu` (verl without accelerators),
`__main__` (the command). They need verl 0.9.
"""
