"""Wrong answers to exercises of lessons: {exercise: (cell, {hint: changes})}."""

WRONG = {
    "allreduce/reduce_scatter": ("""
def reduce_scatter(chunks):
    n = len(chunks)
    <<BEFORE: pass>>
    for step in range(<<STEPS: n - 1>>):
        for rank in range(n):
            peer, i = (rank + 1) % n, <<PLACE: (rank - 1 - step)>> % n
            <<WRITE: chunks[peer][i].add_(chunks[rank][i])>>
""", {
        "the tensors hold what they held": {"STEPS": "0"},
        "the list holds the sums": {"WRITE": "chunks[peer][i] = chunks[peer][i] + chunks[rank][i]"},
        "the result is returned": {
            "BEFORE": "return [sum(row[r] for row in chunks) for r in range(n)]"},
        "the chunks are finished on other ranks, chunk 0 on rank 2": {"PLACE": "(rank - step)"},
        "this is the mean": {"BEFORE": "[c.div_(n) for row in chunks for c in row]"},
        "chunk 0 on rank 0 holds rank 1's": {"WRITE": "chunks[peer][i].copy_(chunks[rank][i])"},
        "numbers of another chunk": {"WRITE": "chunks[peer][i].add_(chunks[rank][(i + 1) % n])"},
        "the numbers are right, but they did not go round": {
            "BEFORE": "for r in range(n): chunks[r][r].copy_(sum(c[r] for c in chunks))",
            "STEPS": "0"}}),
    "allreduce/allgather": ("""
def allgather(chunks):
    n = len(chunks)
    <<BEFORE: pass>>
    for step in range(<<STEPS: n - 1>>):
        for rank in range(n):
            peer, i = (rank + 1) % n, <<PLACE: (rank - step)>> % n
            <<WRITE: chunks[peer][i].copy_(chunks[rank][i])>>
""", {
        "the tensors hold what they held": {"STEPS": "0"},
        "what arrives is added": {"WRITE": "chunks[peer][i].add_(chunks[rank][i])"},
        "chunk 1 on rank 0 holds chunk 1 of rank 0": {"STEPS": "n - 2"},
        "chunk 0 on rank 0 holds chunk 0 of rank": {"PLACE": "(rank - 1 - step)"},
        "the list holds": {"WRITE": "chunks[peer][i] = chunks[rank][i]"},
        "the result is returned": {
            "BEFORE": "return [[chunks[i][i] for i in range(n)] for _ in chunks]"},
        "numbers of another chunk": {"WRITE": "chunks[peer][i].copy_(chunks[rank][i] / 2)"},
        "the numbers are right, but they did not go round": {
            "BEFORE": "[row[i].copy_(chunks[i][i]) for i in range(n) for row in chunks]",
            "STEPS": "0"}}),
    "split_the_work/by_data": ("""
def by_data(X, y, params, devices):
    replicas = <<COPIES: [get_params(params, device) for device in devices]>>
    X_shards, y_shards = <<SHARDS: split_batch(X, y, devices)>>
    for X_shard, y_shard, replica in zip(X_shards, y_shards, replicas):
        loss(lenet(X_shard, replica), y_shard).<<LOSS: sum>>().backward()
    for grads in zip(*[[p.grad for p in replica] for replica in replicas]):
        <<SUM: allreduce(grads)>>
    <<AFTER: pass>>
    return <<RESULT: replicas>>
""", {
        "nothing went through": {"RESULT": "[[p.grad for p in replica] for replica in replicas]"},
        "these share memory": {"COPIES": "[get_params(params, devices[0])] * len(devices)",
                               "SUM": "pass"},
        "each image belongs to one device": {"SHARDS": "[X] * len(devices), [y] * len(devices)"},
        "these are zeros": {
            "AFTER": "[sgd(replica, 0.1, len(X)) for replica in replicas]"},
        "each device has its own gradient": {"SUM": "pass"},
        "only device 0 has the sum": {"SUM": "grads[0].add_(sum(grads[1:]))"},
        "this is the mean over the devices": {
            "SUM": "allreduce(grads); [g.div_(len(grads)) for g in grads]"},
        "each device took the mean": {"LOSS": "mean"},
        "this is the mean over the images": {
            "SUM": "allreduce(grads); [g.div_(len(X)) for g in grads]"},
        "device 1 adds a sum": {
            "SUM": "[g.add_(sum(grads[:r] + grads[r + 1:])) for r, g in enumerate(grads)]"}}),
    "dataparallel/forward": ("""
def forward(module, devices, X):
    X_shards = <<SHARDS: [shard for shard in scatter(X, devices) if len(shard)]>>
    replicas = <<COPIES: replicate(module, devices[:len(X_shards)])>>
    outputs = <<CALLS: parallel_apply(replicas, X_shards)>>
    return <<RESULT: gather(outputs, devices[0])>>
""", {
        "these are parts": {"RESULT": "outputs"},
        "the module itself was called": {"CALLS": "[module(shard) for shard in X_shards]"},
        "a device without rows": {
            "SHARDS": "scatter(X, devices)", "COPIES": "replicate(module, devices)"},
        "each replica works on its own shard": {
            "RESULT": "parallel_apply(replicas, X_shards) and gather(outputs, devices[0])"},
        "no gradient comes back": {"RESULT": "gather(outputs, devices[0]).detach()"}}),
    "ddp_by_hand/bucket": ("""
def pack(tensors):
    <<BEFORE: pass>>
    return <<PACKED: torch.cat([t.reshape(-1) for t in tensors])>>

def unpack(flat, tensors):
    parts = flat.split([t.numel() for t in <<LIST: tensors>>])
    for i, (t, part) in enumerate(zip(LIST, parts)):
        <<WRITE: t.copy_(part.view(t.shape))>>
    return <<RESULT: None>>
""", {
        "pack has changed": {"BEFORE": "[t.div_(2) for t in tensors]"},
        "the last tensor's numbers": {
            "PACKED": "torch.cat([t.reshape(-1) for t in tensors[::-1]])"},
        "this is a list": {"PACKED": "[t.reshape(-1) for t in tensors]"},
        "the list holds them": {"WRITE": "tensors[i] = part.view(t.shape)"},
        "the result is returned": {
            "WRITE": "pass", "RESULT": "[part.view(t.shape) for t, part in zip(tensors, parts)]"},
        "nothing was written": {"WRITE": "t = part.view(t.shape)"},
        "these numbers were added": {"WRITE": "t.add_(part.view(t.shape))"},
        "the numbers are cut off": {"LIST": "tensors[::-1]"}}),
    "ddp/sampler": ("""
def indices(length, world_size, rank, epoch, seed):
    generator = <<GENERATOR: torch.Generator().manual_seed(<<NUMBER: seed + epoch>>)>>
    order = torch.randperm(length, generator=generator).tolist()
    <<BEFORE: pass>>
    while len(order) % world_size:
        order += order[:-len(order) % world_size]
    return <<ROWS: order[rank::world_size]>>
""", {
        "torch's seed for an epoch": {"NUMBER": "seed"},
        "nothing is shuffled": {"BEFORE": "order.sort()"},
        "every rank has all rows": {"ROWS": "order"},
        "this is a block of neighbouring": {
            "ROWS": "order[rank * (n := len(order) // world_size):][:n]"},
        "some ranks have fewer rows": {"BEFORE": "return order[rank::world_size]"},
        "the tail is dropped": {"BEFORE": "order = order[:length // world_size * world_size]"},
        "each rank draws an order": {"NUMBER": "seed + epoch + rank"},
        "whatever draws next": {"GENERATOR": "torch.manual_seed(NUMBER)"}}),
    "predict_before_you_pay/seconds": ("""
def seconds(steps, link):
    return <<RESULT: sum(<<TIME: link.alpha + <<MOST: max(step)>> / link.bandwidth>>
                         for step in steps)>>
""", {
        "the lists are the caller's": {"MOST": "(step.sort() or step[-1])"},
        "a step's messages travel": {"MOST": "sum(step)"},
        "every message is counted": {
            "TIME": "sum(link.alpha + size / link.bandwidth for size in step)"},
        "alpha is left out": {"TIME": "MOST / link.bandwidth"},
        "alpha is paid once": {"RESULT": "link.alpha + sum(map(max, steps)) / link.bandwidth"},
        "bandwidth is bytes a second": {"TIME": "link.alpha + MOST * link.bandwidth"}}),
    "the_clock/amdahl": ("""
def amdahl(serial, world_size):
    time = serial + (1 - serial) / world_size
    return <<RESULT: 1 / time>>
""", {
        "this is the time": {"RESULT": "time"},
        "the serial part is divided": {"RESULT": "world_size"},
        "the parts have changed places": {"RESULT": "1 / (1 - serial + serial / world_size)"}}),
    "keep_only_a_part/zero_bytes": ("""
def zero_bytes(params, world_size, stage):
    weights, gradients, adam = <<BYTES: 2, 2, 12>>
    adam /= world_size if stage <<ADAM: >= 1>> else 1
    gradients /= world_size if stage <<GRADIENTS: >= 2>> else 1
    weights /= world_size if stage <<WEIGHTS: >= 3>> else 1
    return <<RESULT: params * (weights + gradients + adam)>>
""", {
        "nothing is shared out": {"RESULT": "16 * params"},
        "stage 1 shares out": {"GRADIENTS": ">= 1", "WEIGHTS": ">= 1"},
        "each stage shares out": {"ADAM": "== 1", "GRADIENTS": "== 2", "WEIGHTS": "== 3"},
        "Adam has 12 bytes": {"BYTES": "2, 2, 8"},
        "this is the memory of all": {
            "RESULT": "world_size * params * (weights + gradients + adam)"}}),
    "many_machines/rows_to_go": ("""
def rows_to_go(order, seen, rank, world_size):
    left = order[seen:]
    return <<ROWS: left[rank::world_size]>>
""", {
        "the order is the caller's": {
            "ROWS": "order.__delitem__(slice(seen)) or order[rank::world_size]"},
        "these begin at the front": {"ROWS": "order[rank::world_size]"},
        "`seen` counts the rows": {"ROWS": "order[seen * world_size:][rank::world_size]"},
        "every rank gets all": {"ROWS": "left"},
        "no row is lost or read twice": {
            "ROWS": "left[rank * (n := -(-len(left) // world_size)):][:n]"},
        "the last rows are lost": {
            "ROWS": "left[:len(left) // world_size * world_size][rank::world_size]"},
        "some rows are read twice": {
            "ROWS": "(left + (left * world_size)[:-len(left) % world_size])[rank::world_size]"}}),
}
