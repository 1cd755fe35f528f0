"""Fast JAX simulator of training with a rollout replay buffer.

It measures what the theory predicts: the number of updates, and so the cost, that a design
(batch size B, rollouts per update R, buffer size N, step size) needs to reach a target.
Capacity, R, B and step size are traced values over one fixed allocation, so a whole sweep is one
compiled program; lanes (setting, seed) that finish are replaced by the next ones.
"""
