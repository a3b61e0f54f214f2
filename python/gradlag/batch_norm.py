"""Batch norm's statistics, estimated as gradlag's own models do it: at fixed parameters, over fixed training batches."""
import numpy
try:
    import torch
except ModuleNotFoundError:
    raise ImportError("gradlag.load and gradlag.model need PyTorch: python3 -m pip install torch") from None

BATCHES = 8
BATCH_SAMPLES = 250
_BATCH_NORM = torch.nn.modules.batchnorm._BatchNorm


class _Sums:
    """Mean and mean square of a layer's inputs over batches, for each channel."""

    def __init__(self, norm):
        self.norm = norm
        self.batches = 0
        self.mean = self.square = torch.zeros(norm.num_features, dtype=torch.float64)
        self.hook = norm.register_forward_pre_hook(self.add)

    def add(self, _, inputs):
        dimensions = [d for d in range(inputs[0].dim()) if d != 1]
        variance, mean = (each.cpu().double() for each in torch.var_mean(inputs[0], dimensions, unbiased=False))
        self.batches += 1
        self.mean = self.mean + mean
        self.square = self.square + variance + mean ** 2

    def settle(self):
        self.hook.remove()
        self.norm.eval()
        if self.batches > 0:  # 0: the forward pass does not reach the layer
            mean = self.mean / self.batches
            self.norm.running_mean.copy_(mean)
            self.norm.running_var.copy_(self.square / self.batches - mean ** 2)


def estimated(module):
    """The layers whose statistics estimate() sets: batch norm that module.train() puts in training mode. Ends in eval mode."""
    module.train()
    found = [m for m in module.modules() if isinstance(m, _BATCH_NORM) and m.track_running_stats and m.training]
    module.eval()
    return found


def estimate(module, samples, batch):
    """Sets running_mean and running_var of the layers of estimated(); leaves the module in eval mode.

    samples      how many training samples there are
    batch(at)    -> the inputs of the training samples with the indices `at`, as a tensor
    """
    norms = estimated(module)  # leaves dropout in eval mode: it must not change the statistics
    if not norms:
        return
    sums = [_Sums(norm) for norm in norms]
    for norm in norms:
        norm.train()
    try:
        with torch.no_grad():
            for b in range(BATCHES):
                module(batch((b * BATCH_SAMPLES + numpy.arange(BATCH_SAMPLES)) * samples // (BATCHES * BATCH_SAMPLES)))
    finally:
        for each in sums:
            each.settle()


def check(module):
    """Raises ValueError if a layer has running statistics that estimate() cannot set."""
    for name, each in module.named_modules():
        if isinstance(each, torch.nn.modules.batchnorm._NormBase) and not isinstance(each, _BATCH_NORM) and each.track_running_stats:
            raise ValueError(f"layer '{name}' ({type(each).__name__}) has running statistics, which evaluations would use untrained: "
                             "build it with track_running_stats=False")


def estimate_from(module, inputs):
    """estimate() from all training inputs in one array or tensor."""
    inputs = torch.as_tensor(inputs)
    device = next(module.parameters()).device
    estimate(module, len(inputs), lambda at: inputs[torch.from_numpy(at)].to(device))
