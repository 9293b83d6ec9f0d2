"""The second step: the ranks test and print together."""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits  # noqa: TID253
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from train_ddp import evaluate

dist.init_process_group("gloo")  # new
images, labels = load_digits(return_X_y=True)
X, y = torch.tensor(images) / 16, torch.tensor(labels)
data = TensorDataset(X[:1440], y[:1440])
sampler = DistributedSampler(data)
loader = DataLoader(data, 96 // dist.get_world_size(), sampler=sampler)
rank, world_size = dist.get_rank(), dist.get_world_size()
X_test, y_test = X[1440:][rank::world_size], y[1440:][rank::world_size]
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
model = DistributedDataParallel(net.double())  # new
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(2):
    sampler.set_epoch(epoch)
    total = torch.zeros(()).double()
    for X_part, y_part in loader:
        loss = nn.functional.cross_entropy(model(X_part), y_part)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(y_part)
    dist.all_reduce(total)
    right = evaluate(model.module, X_test, y_test) * 357
    if rank == 0:
        loss = total / 1440
        print(f"epoch {epoch}: loss {loss:.4f}, right {right:.0f} of 357")
del model  # new
dist.destroy_process_group()  # new
