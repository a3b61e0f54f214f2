"""Softmax regression on gaussian clusters, in NumPy.

    gradlag run model=external model.command="python3 python/examples/softmax_numpy.py" mode=async workers=4
"""
import numpy

import gradlag


class Softmax:
    def __init__(self, request):
        self.features = request.option("features", 64)
        self.classes = request.option("classes", 10)
        self.seed = request.seed
        rng = numpy.random.default_rng(7)
        centres = rng.normal(size=(self.classes, self.features)).astype(numpy.float32) * 0.3
        self.samples = {"train": 8000, "validation": 1000, "test": 2000}
        self.data = {}
        for split, count in self.samples.items():
            labels = rng.integers(0, self.classes, count)
            self.data[split] = centres[labels] + rng.normal(size=(count, self.features)).astype(numpy.float32), labels

    def parameters(self):
        rng = numpy.random.default_rng([self.seed, 1])
        weight = rng.normal(size=(self.classes, self.features), scale=self.features ** -0.5)
        return {"weight": weight.astype(numpy.float32), "bias": numpy.zeros(self.classes, numpy.float32)}

    def bind(self, parameters, gradients):
        self.gradients = gradients

    def _forward(self, parameters, images, labels):
        logits = images @ parameters["weight"].T + parameters["bias"]
        logits -= logits.max(axis=1, keepdims=True)
        logs = logits - numpy.log(numpy.exp(logits).sum(axis=1, keepdims=True))
        rows = numpy.arange(len(labels))
        return -logs[rows, labels].mean(), logs

    def gradient(self, parameters, samples):
        images, labels = (each[samples] for each in self.data["train"])
        loss, logs = self._forward(parameters, images, labels)
        error = numpy.exp(logs)
        error[numpy.arange(len(labels)), labels] -= 1
        error /= len(labels)
        numpy.matmul(error.T, images, out=self.gradients["weight"])
        error.sum(axis=0, out=self.gradients["bias"])
        return loss, (logs.argmax(axis=1) == labels).sum(), None

    def evaluate(self, parameters, split, samples):
        images, labels = (each[samples] for each in self.data[split])
        loss, logs = self._forward(parameters, images, labels)
        predictions = logs.argmax(axis=1)
        return loss, (predictions == labels).sum(), predictions


if __name__ == "__main__":
    gradlag.serve(Softmax)
