"""The trainings of exercise 7.6: they save, are killed and resume, or so they say.

    RIGHT, BUGS   {what it does: source of a class}

TRAINER is a right one. Each of the others has one place changed. A training trains on
twelve rows in minibatches of four, in an order that is new in every epoch; it drops
inputs at random and turns signs at random, with momentum and a rate that falls.
"""

TRAINER = '''
class Training:
    def __init__(self, seed):
        torch.manual_seed(seed)
        random.seed(seed)
        self.X, self.y = draw_batch(12, 5)
        self.params = draw_params(seed)
        self.speeds = [torch.zeros_like(p) for p in self.params]
        self.generator = torch.Generator().manual_seed(seed)
        self.order, self.place, self.steps = [], 0, 0
        BEGIN

    def run(self, steps):
        for _ in range(steps):
            if self.place == len(self.order):
                self.order = torch.randperm(12, generator=self.generator).tolist()
                self.place = 0
            rows = self.order[self.place:self.place + 4]
            X = self.X[rows] * (torch.rand(5) > 0.2) * random.choice([1, -1])
            params = copy_params(self.params)
            LOSS.backward()
            for p, v, own in zip(self.params, self.speeds, params):
                v.mul_(0.9).add_(own.grad)
                p.sub_(RATE * v)
            self.place, self.steps = self.place + 4, self.steps + 1

    def weights(self):
        return [p.clone() for p in self.params]

    def save(self, path):
        state = {"params": self.params, "speeds": self.speeds, "order": self.order,
                 "generator": self.generator.get_state(), "place": self.place,
                 "steps": self.steps, "torch": torch.get_rng_state(),
                 "random": torch.tensor(random.getstate()[1])}
        SAVE
        torch.save(state, path)
        SAVED

    def load(self, path):
        state = torch.load(path)
        LOAD
        self.params, self.speeds = state["params"], state["speeds"]
        self.order, self.place = state["order"], state["place"]
        self.generator.set_state(state["generator"])
        self.steps = state["steps"]
        torch.set_rng_state(state["torch"])
        random.setstate((3, tuple(state["random"].tolist()), None))
        LOADED
'''
PLACES = {"BEGIN": "pass", "RATE": "0.5 * 0.9 ** self.steps", "SAVE": "pass",
          "SAVED": "pass", "LOAD": "pass", "LOADED": "pass",
          "LOSS": "loss(params, X, self.y[rows]).mean()"}

RIGHT = {
    "saves all that it needs": {},
    "trains in float32": {"BEGIN": "self.X = self.X.float(); self.params = "
                          "draw_params(seed, torch.float32); self.speeds = "
                          "[torch.zeros_like(p) for p in self.params]"},
    "trains at a rate at which its weights end as NaN": {
        "RATE": "1e200", "LOSS": "sum((p ** 2).sum() ** 2 for p in params)"},
    "has a constant rate and does not save its step":
        {"RATE": "0.3", "SAVE": "state['steps'] = 0"},
    "saves copies": {"SAVE": "state['params'] = self.weights()"},
    "saves a second time into a file that is there, under another name first": {
        "SAVE": "torch.save(state, path + '.part'); os.replace(path + '.part', path)"},
    "finds its place by its steps": {
        "SAVE": "state['place'] = 0",
        "LOADED": "self.place = 4 * ((self.steps - 1) % 3 + 1) if self.steps else 0"},
}
BUGS = {
    "forgets the momentum": {
        "LOADED": "self.speeds = [torch.zeros_like(p) for p in self.params]"},
    "forgets how many steps the rate has fallen": {"LOADED": "self.steps = 0"},
    "forgets torch's random numbers": {
        "LOAD": "state['torch'] = torch.get_rng_state()"},
    "forgets Python's random numbers": {
        "LOAD": "state['random'] = torch.tensor(random.getstate()[1])"},
    "forgets what draws the order of the epochs to come": {
        "LOAD": "state['generator'] = self.generator.get_state()"},
    "begins the epoch anew": {"LOADED": "self.place = 0"},
    "leaves out the rest of the epoch": {"LOADED": "self.order, self.place = [], 0"},
    "rounds the weights to float32": {
        "SAVE": "state['params'] = [p.float().to(p.dtype) for p in self.params]"},
    "disturbs the run that goes on after the save": {"SAVED": "torch.rand(1)"},
    "never writes into a file that is there": {
        "SAVE": "if os.path.exists(path): return"},
    "forgets the last parameter": {
        "LOAD": "state['params'][-1] = self.params[-1]"},
    "counts a step too many": {"LOAD": "state['steps'] += 1"},
}


def source(changes):
    """Return TRAINER with the lines of `changes` in their places."""
    text = TRAINER
    # longest first: SAVE is a part of SAVED
    for place in sorted(PLACES, key=len, reverse=True):
        text = text.replace(place, changes.get(place, PLACES[place]))
    return text
