"""The first step: each rank trains on rows of its own."""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits  # noqa: TID253
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")  # new
images, labels = load_digits(return_X_y=True)
X, y = torch.tensor(images) / 16, torch.tensor(labels)
data = TensorDataset(X[:1440], y[:1440])
sampler = DistributedSampler(data)
loader = DataLoader(data, 96 // dist.get_world_size(), sampler=sampler)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
model = DistributedDataParallel(net.double())  # new
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for X_part, y_part in loader:
        loss = nn.functional.cross_entropy(model(X_part), y_part)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right = (model(X[1440:]).argmax(1) == y[1440:]).sum()
    print(f"epoch {epoch}: loss {loss:.4f}, right {right} of 357")
del model  # new
dist.destroy_process_group()  # new
