"""Images a second: is the device faster than the CPU, and in which conditions?

    images   of a network in training, in full or in mixed precision
    timed    the seconds of some steps

A GPU wants much work at once: each operation must be launched, which takes the CPU some
microseconds, however few numbers it is about. So time it with few rows, and with many.
"""

import time
from statistics import median

import torch
from torch.nn import functional as F

from course.lab.gpu.timeline import wait
from course.lab.trainer.methods import Mixed, short_type
from course.lab.trainer.step import make_scaler
from manual_dp.models.lenet import LeNet
from manual_dp.models.resnet import resnet18

NETS = {"LeNet": (LeNet, (1, 28, 28)), "ResNet-18": (resnet18, (3, 32, 32))}


def images(device, name="LeNet", rows=256, steps=10, mixed=False):
    """Return the images a second of training: forward, backward, update of SGD.

    The median step of `steps` after two that warm up; the minibatch, `rows` images,
    lies on the device already. mixed: in the device's shorter type, with a scaler for
    float16.
    """
    make, shape = NETS[name]
    net = make().to(device)
    dtype = short_type(device) if mixed else torch.float32
    model = Mixed(net, dtype) if mixed else net
    scaler = make_scaler(dtype, device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    X = torch.rand(rows, *shape, device=device)
    y = torch.randint(10, (rows,), device=device)

    def step():
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(X), y)).backward()
        scaler.step(optimizer)
        scaler.update()
        wait(device)
    return rows / median(timed(step, steps))


def timed(step, count):
    """Return the seconds of `count` calls of step(), after two that warm up."""
    seconds = []
    for _ in range(count + 2):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    return seconds[2:]
