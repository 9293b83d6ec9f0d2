"""The course's networks as `nn.Module`s."""
