import os
import torch
import torch.nn as nn
import torch.optim as optim
import torchvision
import torchvision.transforms as transforms
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

# Setup distributed environment (example for local execution)
def init_distributed(backend='nccl'):
    if 'RANK' in os.environ and 'WORLD_SIZE' in os.environ:
       rank = int(os.environ["RANK"])
       world_size = int(os.environ['WORLD_SIZE'])
       gpu = int(os.environ['LOCAL_RANK'])
    else:
       rank, world_size, gpu = 0, 1, 0
    dist.init_process_group(backend, rank=rank, world_size=world_size)
    torch.cuda.set_device(gpu)
    return rank, world_size, gpu


rank, world_size, gpu = init_distributed()

# Data transformation
transform = transforms.Compose(
    [transforms.ToTensor(),
     transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))])

# Load CIFAR-10 dataset
trainset = torchvision.datasets.CIFAR10(root='./data', train=True,
                                       download=True, transform=transform)

sampler = torch.utils.data.distributed.DistributedSampler(trainset,
                                                        num_replicas=world_size,
                                                        rank=rank,
                                                        shuffle=True)
trainloader = torch.utils.data.DataLoader(trainset, batch_size=128,
                                         sampler=sampler, num_workers=2)



# Initialize ResNet50
model = torchvision.models.resnet50(pretrained=False, num_classes=10)
model.to(gpu)

# Wrap the model with DistributedDataParallel
model = DistributedDataParallel(model, device_ids=[gpu])

# Define loss function and optimizer
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(model.parameters(), lr=0.001, momentum=0.9)

# Training loop
for epoch in range(2):  # Loop over the dataset multiple times
  sampler.set_epoch(epoch) #Important for shuffle across multiple epochs with DDP
  running_loss = 0.0
  for i, data in enumerate(trainloader, 0):
    inputs, labels = data[0].to(gpu), data[1].to(gpu)
    optimizer.zero_grad()
    outputs = model(inputs)
    loss = criterion(outputs, labels)
    loss.backward()
    optimizer.step()

    running_loss += loss.item()
    if i % 200 == 199 and rank == 0:    # print every 200 mini-batches (rank 0)
      print('[%d, %5d] loss: %.3f' %
            (epoch + 1, i + 1, running_loss / 200))
      running_loss = 0.0

if rank == 0:
  print('Finished Training')
