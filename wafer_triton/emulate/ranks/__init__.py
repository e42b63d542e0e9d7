"""A mesh over the ranks of torch.distributed."""
