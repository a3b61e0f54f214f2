"""A worker without any code of gradlag: it speaks the wire format (docs/wire-format.md) with pyzmq.

    gradlag server workers=1 model=external model.command="python3 python/examples/softmax_numpy.py"
    python3 python/examples/foreign_worker.py ENDPOINT run_token=TOKEN [worker=0 workers=1 seed=1 batch=32 settings_hash=0]

The server prints ENDPOINT, TOKEN and the settings hash. This worker computes the batches that gradlag's own worker would
compute. So a run with the server's settings hash replays bit for bit. Off loopback a worker needs CURVE keys, which this
example leaves out.
"""
import os
import struct
import sys
import time

import numpy
import zmq

from gradlag.peer import Request
from softmax_numpy import Softmax

HELLO, WELCOME, READY, RELEASE, PARAMETERS, PUSH, GRADIENT, PING, PONG, PULL, END, GOODBYE, REFUSED = range(1, 14)
FRAMES, CHUNK, SHUFFLE = 2, 1 << 20, 2


class Stream:
    """Words of a random stream: Philox4x32-10 (Salmon et al. 2011)."""

    def __init__(self, purpose, seed, worker, step):
        self.key = seed & 0xFFFFFFFF, seed >> 32
        self.rest = step & 0xFFFFFFFF, step >> 32, purpose << 24 | worker
        self.block, self.words = 0, []

    def word(self):
        if not self.words:
            c, (k0, k1) = (self.block, *self.rest), self.key
            for _ in range(10):
                a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
                c = (b >> 32 ^ c[1] ^ k0, b & 0xFFFFFFFF, a >> 32 ^ c[3] ^ k1, a & 0xFFFFFFFF)
                k0, k1 = k0 + 0x9E3779B9 & 0xFFFFFFFF, k1 + 0xBB67AE85 & 0xFFFFFFFF
            self.words = list(c)
            self.block += 1
        return self.words.pop(0)

    def below(self, bound):
        while True:
            product = self.word() * bound
            if product & 0xFFFFFFFF >= (1 << 32) % bound:
                return product >> 32


class Shard:
    """The samples of each batch of one worker, with sampler=partition."""

    def __init__(self, total, seed, worker, workers, batch):
        self.size = len(range(worker, total, workers))
        self.seed, self.worker, self.workers, self.batch = seed, worker, workers, batch
        self.passes = {}

    def order(self, number):
        if number not in self.passes:
            stream = Stream(SHUFFLE, self.seed, self.worker, number)
            order = [0] * self.size
            for i in range(self.size):
                j = stream.below(i + 1)
                order[i], order[j] = order[j], i
            self.passes = {number: order, **{n: o for n, o in self.passes.items() if n == number - 1}}
        return self.passes[number]

    def samples(self, k):
        items = range(k * self.batch, (k + 1) * self.batch)
        return [self.worker + self.workers * self.order(i // self.size)[i % self.size] for i in items]


class Connection:
    def __init__(self, endpoint, token, worker):
        self.token, self.worker, self.incarnation = int(token, 16), worker, 0
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.routing_id = b"\x01" + os.urandom(15)
        self.socket.plain_username, self.socket.plain_password = b"gradlag", b"%016x" % self.token
        self.socket.linger = 1000
        self.socket.connect(endpoint)

    def send(self, kind, sequence, body, floats=b""):
        head = struct.pack("<4sHHQQQIIII", b"GLAG", 2, kind, self.token, self.incarnation, sequence, self.worker, len(body), len(floats), 0)
        self.socket.send_multipart([head + body, floats] if floats else [head + body])

    def receive(self, sequence, limit_s, say):
        """Waits for a message; calls say(sequence) once a second, as a sign of life. Returns type, head, body, floats."""
        until = time.monotonic() + limit_s
        while not self.socket.poll(1000):
            if time.monotonic() > until:
                sys.exit(f"foreign_worker: the server has sent nothing for {limit_s:.0f} s; check the endpoint and the run token")
            say(sequence)
        frame, *floats = self.socket.recv_multipart()
        head = struct.unpack_from("<4sHHQQQIIII", frame)
        return head[2], head, frame[48:], floats[0] if floats else b""


def join(link, count, settings_hash):
    """hello → welcome → ready. Returns the number of the first batch and the server's timeout in seconds."""
    hello = struct.pack("<QQQ16sII", count, settings_hash, int.from_bytes(os.urandom(8), "little"), bytes(16), os.getpid(), FRAMES)
    link.send(HELLO, 0, hello)
    kind = PONG  # the server answers with a pong until the place of a lost worker is free
    while kind == PONG:
        kind, head, body, _ = link.receive(0, 60, lambda sequence: link.send(HELLO, sequence, hello))
    if kind != WELCOME:
        sys.exit("foreign_worker: " + body[4:].split(b"\0")[0].decode())
    link.incarnation = head[4]
    first, _, timeout_ms = struct.unpack_from("<QII", body, 80)
    link.send(READY, 0, struct.pack("<I", FRAMES))
    return first, timeout_ms / 1000


def train(link, model, shard, settings_hash):
    shapes = {name: value.shape for name, value in model.parameters().items()}
    sizes = {name: int(numpy.prod(shape)) for name, shape in shapes.items()}
    flat, gradient = numpy.zeros((2, sum(sizes.values())), numpy.float32)
    ends = numpy.cumsum(list(sizes.values()))[:-1]

    def views(vector):
        return {name: part.reshape(shapes[name]) for name, part in zip(shapes, numpy.split(vector, ends))}

    parameters = views(flat)
    model.bind(parameters, views(gradient))
    first, timeout_s = join(link, flat.size, settings_hash)
    sequence = version = received = 0
    waits_since = time.monotonic()
    while True:
        kind, head, body, floats = link.receive(sequence, 20 * timeout_s, lambda s: link.send(PING, s, struct.pack("<I", 1)))
        if kind in (END, REFUSED):
            link.send(GOODBYE, sequence, struct.pack("<I192s", 0, b""))
            code, text = struct.unpack("<I192s", body)
            print(f"{sequence} gradients;", text.split(b"\0")[0].decode() or "training is over")
            return code
        if kind == RELEASE:
            version, received = struct.unpack_from("<Q", body)[0], 0
        if kind != PARAMETERS:
            continue
        offset = struct.unpack("<QQ", body)[1] // 4
        flat[offset:offset + len(floats) // 4] = numpy.frombuffer(floats, "<f4")
        received += len(floats)
        if received < flat.nbytes:
            continue
        batch, began = first + sequence, time.monotonic()
        loss, _, _ = model.gradient(parameters, numpy.array(shard.samples(batch)))
        ended = time.monotonic()
        link.send(PUSH, sequence, struct.pack("<QQddddddI", version, 0, loss, (began - waits_since) * 1e6, (ended - began) * 1e6, 0, 0,
                                              (ended - began) * 1e6, shard.batch))
        raw = gradient.tobytes()
        for at in range(0, len(raw), CHUNK):
            link.send(GRADIENT, sequence, struct.pack("<QQ", version, at), raw[at:at + CHUNK])
        sequence, waits_since = sequence + 1, ended


def main(endpoint, *settings):
    given = {"worker": "0", "workers": "1", "seed": "1", "batch": "32", "settings_hash": "0", **dict(s.split("=", 1) for s in settings)}
    worker, workers, seed, batch = (int(given[key]) for key in ("worker", "workers", "seed", "batch"))
    model = Softmax(Request({"seed": seed, "workers": workers, "batch": batch, "threads": 1, "options": {}}))
    shard = Shard(model.samples["train"], seed, worker, workers, batch)
    return train(Connection(endpoint, given["run_token"], worker), model, shard, int(given["settings_hash"], 16))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
