"""A PyTorch model for model=external: a module, datasets and a loss.

    import gradlag.torch
    gradlag.torch.serve(model=lambda request: Net(), data=lambda request: {"train": train, "test": test})

Parameters and gradients are views of gradlag's own memory; on a GPU each is copied to and from memory shared with gradlag.
"""
import warnings

import numpy

try:
    import torch
except ModuleNotFoundError:
    raise ImportError("gradlag.torch needs PyTorch: python3 -m pip install torch") from None

from . import batch_norm, peer

# Parameters are read-only memory (docs/external-models.md).
warnings.filterwarnings("ignore", "The given NumPy array is not writ")

SPLITS = ("train", "validation", "test")


def _name(value):
    return type(value).__name__


def _checked(data):
    """The user's datasets. Raises an error for a mistake in them."""
    if not isinstance(data, dict) or "train" not in data or data.keys() - set(SPLITS):
        raise TypeError(f"data(request) must return a dict with 'train' and optionally 'validation' and 'test', "
                        f"not {sorted(data) if isinstance(data, dict) else _name(data)}")
    for split, dataset in data.items():
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise TypeError(f"data '{split}' is a {_name(dataset)}: give a dataset with a length and an index, not a loader; gradlag makes the batches")
        sample = dataset[0] if len(dataset) > 0 else (None, None)
        if not isinstance(sample, (tuple, list)) or len(sample) != 2:
            raise TypeError(f"a sample of data '{split}' must be a pair (input, target), not {_name(sample)}")
    if len(data["train"]) == 0:
        raise ValueError("data 'train' has no samples")
    return data


class _Model:
    def __init__(self, request, model, data, loss, classes, head):
        if isinstance(model, torch.nn.Module):
            raise TypeError("model must be a function that makes the module: model=lambda request: Net()")
        torch.set_num_threads(request.threads)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.manual_seed(request.seed)
        self.module = model(request)
        self.data = {"validation": (), "test": (), **_checked(data(request))}
        self.loss = loss
        if not isinstance(self.module, torch.nn.Module) or not any(p.requires_grad for p in self.module.parameters()):
            raise TypeError(f"model(request) must return an nn.Module with parameters to train, not {_name(self.module)}")
        self.device = next(self.module.parameters()).device
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # bind() and _store() call functions of the current device
        self.copy = self.device.type != "cpu"
        self.page_locked = set()
        self.trained = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        self._check()
        self.not_hidden = self._not_hidden(head)
        self.start = {n: p.detach().cpu().float().numpy() for n, p in self.trained.items()}
        self.samples = {split: len(dataset) for split, dataset in self.data.items()}
        self.classes = classes
        self.seed = request.seed
        if classes is None:
            inputs, targets = self._batch("train", [0])
            with torch.no_grad():
                output = self.module.eval()(inputs)
            self.classes = 0 if targets.is_floating_point() or self._tensor(output).dim() < 2 else output.shape[1]

    def _tensor(self, output):
        if not isinstance(output, torch.Tensor):
            raise TypeError(f"the module {_name(self.module)} returned a {_name(output)}; accuracy needs a tensor: return it in forward(), for example "
                            "output.logits, or give serve() classes=0 and a loss that reads this output")
        return output

    def _check(self):
        batch_norm.check(self.module)
        for name, parameter in self.trained.items():
            if not self.copy and parameter.dtype != torch.float32:
                raise TypeError(f"parameter '{name}' is {parameter.dtype}; on the CPU it must be float32, gradlag's own type: "
                                "call module.float(), and convert in forward() where you compute in another type")

    def _not_hidden(self, head):
        """The trained parameters of embeddings and of the head, which optimizer=muon does not update as hidden matrices."""
        modules = dict(self.module.named_modules())
        if head is not None and head not in modules:
            raise ValueError(f"head='{head}' is no part of the model; it has: {', '.join(name for name in modules if name)}")
        apart = [m for name, m in modules.items() if isinstance(m, torch.nn.Embedding) or name == head]
        own = {id(p) for m in apart for p in m.parameters()}
        return {name for name, p in self.trained.items() if id(p) in own}

    def parameters(self):
        return self.start

    def bind(self, parameters, gradients):
        """On the CPU, parameters and gradients of the module are gradlag's memory itself."""
        self.shared = {n: (torch.from_numpy(parameters[n]).view(p.shape), torch.from_numpy(gradients[n]).view(p.shape))
                       for n, p in self.trained.items()}
        if self.device.type == "cpu":
            for name, parameter in self.trained.items():
                parameter.data, parameter.grad = self.shared[name]
        elif self.device.type == "cuda":  # copies to and from page-locked memory are faster
            for each in (parameters, gradients):
                first = min(array.ctypes.data for array in each.values())
                if first not in self.page_locked:
                    self.page_locked.add(first)
                    torch.cuda.cudart().cudaHostRegister(first, sum(array.nbytes for array in each.values()), 0)

    def _load(self):
        if self.device.type != "cpu":
            for name, parameter in self.trained.items():
                parameter.data.copy_(self.shared[name][0], non_blocking=True)

    def _store(self):
        if self.device.type != "cpu":
            for name, parameter in self.trained.items():
                if parameter.grad is None:  # not used by the forward pass
                    self.shared[name][1].zero_()
                else:
                    self.shared[name][1].copy_(parameter.grad, non_blocking=True)
            torch.cuda.synchronize()

    def _batch(self, split, samples):
        dataset = self.data[split]
        if type(dataset) is torch.utils.data.TensorDataset:  # a subclass may define its own index
            at = torch.as_tensor(samples)
            batch = [tensor[at] for tensor in dataset.tensors]
        else:
            batch = torch.utils.data.default_collate([dataset[int(i)] for i in samples])
        return [tensor.to(self.device, non_blocking=True) for tensor in batch]

    def _compute(self, split, samples):
        inputs, targets = self._batch(split, samples)
        output = self.module(inputs)
        if self.classes == 0:
            return self.loss(output, targets), 0, None
        loss = self.loss(self._tensor(output), targets)
        predictions = output.detach().argmax(dim=1)
        counted = targets >= 0  # losses ignore negative targets (ignore_index)
        # With more targets than samples (tokens of a text), `correct` is the share of right targets, in whole samples.
        count = max(1, int(counted.sum()))
        correct = (int((predictions == targets).sum()) * len(samples) + count // 2) // count
        return loss, correct, predictions[counted].cpu().numpy()

    def gradient(self, parameters, samples, rng):
        torch.manual_seed(int(rng.integers(1 << 63)))
        self._load()
        self.module.train()
        for parameter in self.trained.values():
            if parameter.grad is not None:
                parameter.grad.zero_()
        loss, correct, _ = self._compute("train", samples)
        loss.backward()
        self._store()
        return loss.item(), correct, None

    def _seed(self, *purpose):
        """Seeds the random numbers, so that evaluations do not depend on earlier computations."""
        torch.manual_seed(int(numpy.random.SeedSequence([self.seed, *purpose]).generate_state(1, numpy.uint64)[0]))

    def prepare(self, parameters):
        """Re-estimates batch norm's statistics on fixed training batches, as gradlag's own models do."""
        self._seed()
        self._load()
        batch_norm.estimate(self.module, self.samples["train"], lambda at: self._batch("train", at)[0])

    def evaluate(self, parameters, split, samples):
        self._seed(SPLITS.index(split), int(samples[0]))
        self.module.eval()
        with torch.no_grad():
            loss, correct, predictions = self._compute(split, samples)
        return loss.item(), correct, predictions


def serve(model, data, loss=torch.nn.functional.cross_entropy, classes=None, head=None):
    """Answers gradlag's requests until the run is over.

    model(request)  -> an nn.Module, on the device where it shall compute; request.option("width", 64) reads model.width
    data(request)   -> dict of datasets: "train", "test" and, if there is one, "validation"; a sample is (input, target)
    loss(output, target) -> the mean loss of a batch
    classes         number of classes; None: the second dimension of the output, 0 if targets are floating-point; 0: no accuracy.
                    Accuracy counts targets that are not negative
    head            name of the part of the module that computes the output, for example "lm_head". optimizer=muon updates this part
                    and every nn.Embedding with AdamW
    """
    peer.serve(lambda request: _Model(request, model, data, loss, classes, head))
