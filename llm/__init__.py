"""Real GRPO training with a rollout replay buffer, on a laptop CPU or on a GPU.

`python -m llm.train --preset tiny` trains a small character-level language model on arithmetic
with B rollouts per update drawn from a buffer of N that gets R new ones, and logs what the theory
is about: cost, staleness, uses of a rollout, probability ratios by age. Importing this room needs
neither torch nor transformers; its modules do.
"""
