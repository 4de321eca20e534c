# mypy: ignore-errors
# ruff: noqa: SIM102
"""The Triton kernels of :mod:`catlog_kernels`, imported at the first CUDA call.

A row is a neighbour: a point with the bit of one slot flipped. The last slot of every point is the
point itself. All sizes are free: widths are padded with zeros to multiples of FILL, so that tiles
of products need no masks. The kernels run in the order ``_begin``, ``_first``, a matrix product,
``_second``, then ``_last`` after another product, or ``_last_fused``. The second layer's products
are the library's, because a kernel with products and ReLU in one took longer. The last layer's are
fused with the sum where that is faster.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _product(a, b):
    return a * b


@triton.jit
def _softplus_sum(logits, COLUMNS: tl.constexpr):
    """Return the sums over columns of softplus(x) = max(x, 0) + log(1 + exp(-|x|)).

    One logarithm is taken of the product of all columns. The factors 0.75 (1 + exp(-|x|)) lie
    between 0.75 and 1.5, so that a product of 128 is in float32's range.
    """
    factor = 0.75 * tl.exp2(-1.4426950408889634 * tl.abs(logits)) + 0.75
    log2 = tl.log2(tl.reduce(factor, 1, _product)) + COLUMNS * 0.4150374992788438
    return tl.sum(tl.maximum(logits, 0.0), 1) + 0.6931471805599453 * log2


@triton.jit
def _power(x):
    """Return the power of two at or below x, at least 2^-100."""
    x = tl.maximum(x, 7.888609052210118e-31)
    return (x.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)


@triton.jit
def _size(x):
    """Return the power of two at or below x, at least 2^-40.

    Products and quotients of two such sizes are in float32's range.
    """
    return _power(tl.maximum(x, 9.094947017729282e-13))


@triton.jit
def _relu(x):
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _tile(
    h, w, b, out, tile, rows, stride, K, OUT,
    WIDE: tl.constexpr, REST: tl.constexpr, RELU: tl.constexpr, BIAS: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write a tile of h w' + b or relu(h) w' + b, in nearly float32's precision.

    Columns from OUT to WIDE get REST.
    """
    tiles = WIDE // BN
    r = tile // tiles * BM + tl.arange(0, BM)
    j = tile % tiles * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        hidden = tl.load(
            h + r[:, None] * stride + k[None, :],
            mask=(r[:, None] < rows) & (k[None, :] < K),
            other=0.0,
        )
        weight = tl.load(
            w + j[:, None] * K + k[None, :], mask=(j[:, None] < OUT) & (k[None, :] < K), other=0.0
        )
        if RELU:
            hidden = _relu(hidden)
        acc = tl.dot(hidden, weight.T, acc, input_precision="tf32x3")
    if BIAS:
        acc += tl.load(b + j, mask=j < OUT, other=0.0)[None, :]
    tl.store(
        out + r[:, None] * WIDE + j[None, :],
        tl.where(j[None, :] < OUT, acc, REST),
        mask=r[:, None] < rows,
    )


@triton.jit
def _transposed(
    w, columns, sizes, block, inputs, H1, W1: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr
):
    """Write columns of w as rows, and the size of the largest entry of each."""
    i = block * BR + tl.arange(0, BR)
    largest = tl.zeros((BR,), tl.float32)
    for start in range(0, W1, BK):
        k = start + tl.arange(0, BK)
        values = tl.load(
            w + k[:, None] * inputs + i[None, :],
            mask=(k[:, None] < H1) & (i[None, :] < inputs),
            other=0.0,
        )
        tl.store(columns + i[:, None] * W1 + k[None, :], values.T, mask=i[:, None] < inputs)
        largest = tl.maximum(largest, tl.max(tl.abs(values), 0))
    tl.store(sizes + i, _size(largest), mask=i < inputs)


@triton.jit
def _largest(w, largest, block, rows, K, BR: tl.constexpr, BK: tl.constexpr):
    """Write the largest entry of a block of rows."""
    r = block * BR + tl.arange(0, BR)
    most = tl.zeros((BR, BK), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        values = tl.load(
            w + r[:, None] * K + k[None, :], mask=(r[:, None] < rows) & (k[None, :] < K), other=0.0
        )
        most = tl.maximum(most, tl.abs(values))
    tl.store(largest + block, tl.max(tl.max(most, 1), 0))


@triton.jit
def _halved(
    w, half, largest, scale, block, rows, K,
    WIDE: tl.constexpr, RAISE: tl.constexpr, BLOCKS: tl.constexpr, BR: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """Write a block of rows in 16 bits, divided by a power of two.

    That power brings the matrix' largest entry between RAISE and 2 RAISE.
    """
    m = tl.arange(0, BLOCKS)
    power = _size(tl.max(tl.load(largest + m, mask=m < tl.cdiv(rows, BR), other=0.0), 0)) / RAISE
    if block == 0:
        tl.store(scale, power)
    r = block * BR + tl.arange(0, BR)
    for start in range(0, WIDE, BK):
        k = start + tl.arange(0, BK)
        values = tl.load(
            w + r[:, None] * K + k[None, :], mask=(r[:, None] < rows) & (k[None, :] < K), other=0.0
        )
        tl.store(
            half + r[:, None] * WIDE + k[None, :],
            (values * (1.0 / power)).to(half.dtype.element_ty),
        )


@triton.jit
def _begin(
    x, w1, b1, w2, w3, base, columns, sizes, largest2, largest3,
    tiles, blocks1, blocks2, points, inputs, H1, H2, OUT,
    W1: tl.constexpr, UNIT: tl.constexpr, BIAS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Write the points' first layer, its weights' columns and sizes, the largest later weights."""
    block = tl.program_id(0)
    inputs = inputs // UNIT * UNIT  # tells the compiler that it is a multiple
    if block < tiles:
        _tile(x, w1, b1, base, block, points, inputs, inputs, H1, W1, 0.0, False, BIAS, BM, BK, BN)
    elif block < tiles + blocks1:
        _transposed(w1, columns, sizes, block - tiles, inputs, H1, W1, BR, BK)
    elif block < tiles + blocks1 + blocks2:
        _largest(w2, largest2, block - tiles - blocks1, H2, H1, BR, BK)
    else:
        _largest(w3, largest3, block - tiles - blocks1 - blocks2, OUT, H2, BR, BK)


@triton.jit
def _first(
    x, which, w2, b2, w3, base, columns, sizes, largest2, largest3, z2, half2, half3, scales,
    changes, units,
    tiles, blocks2, blocks3, points, slots, inputs, H1, H2, OUT,
    W1: tl.constexpr, W2: tl.constexpr, RAISE2: tl.constexpr, RAISE3: tl.constexpr,
    BLOCKS2: tl.constexpr, BLOCKS3: tl.constexpr, CHOSEN: tl.constexpr, BIAS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr, BW: tl.constexpr,
    TURNS: tl.constexpr,
):  # fmt: skip
    """Write the points' second layer, and in 16 bits the weights and the first layer's changes.

    Every row of changes is divided by the size of its column, so that all are below 2. A program
    writes BR slots of TURNS points, for which it reads its weights once.
    """
    block = tl.program_id(0)
    if block < tiles:
        _tile(base, w2, b2, z2, block, points, W1, H1, H2, W2, 0.0, True, BIAS, BM, BK, BN)
    elif block < tiles + blocks2:
        _halved(w2, half2, largest2, scales, block - tiles, H2, H1, W1, RAISE2, BLOCKS2, BR, BK)
    elif block < tiles + blocks2 + blocks3:
        _halved(
            w3,
            half3,
            largest3,
            scales + 1,
            block - tiles - blocks2,
            OUT,
            H2,
            W2,
            RAISE3,
            BLOCKS3,
            BR,
            BK,
        )
    else:
        block -= tiles + blocks2 + blocks3
        k = block % (W1 // BW) * BW + tl.arange(0, BW)
        block = block // (W1 // BW)
        groups = tl.cdiv(slots + 1, BR)
        slot = block % groups * BR + tl.arange(0, BR)
        moves = slot < slots
        column = tl.where(moves, slot, 0)
        weight = tl.load(columns + column[:, None] * W1 + k[None, :])
        size = tl.load(sizes + column)
        start = block // groups * TURNS
        for point in range(start, tl.minimum(start + TURNS, points)):
            if CHOSEN:
                column = tl.load(which + point * slots + slot, mask=moves, other=0).to(tl.int32)
                weight = tl.load(columns + column[:, None] * W1 + k[None, :])
                size = tl.load(sizes + column)
            sign = 1.0 - 2.0 * tl.load(x + point * inputs + column, mask=moves, other=0.5)
            at_point = tl.load(base + point * W1 + k)[None, :]
            moved = at_point + sign[:, None] * weight
            change = _relu(moved) - _relu(at_point)
            change = (change * (1.0 / size)[:, None]).to(changes.dtype.element_ty)
            r = point * (slots + 1) + slot
            tl.store(
                changes + r.to(tl.int64)[:, None] * W1 + k[None, :],
                change,
                mask=slot[:, None] <= slots,
            )
            tl.store(units + r, size, mask=slot <= slots)


@triton.jit
def _second(
    w3, b3, z2, z3, changes, units, scales, slope, offset, parts,
    tiles, points, begin, slots, batch, H2, OUT,
    W2: tl.constexpr, W3: tl.constexpr, BIAS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Write the points' logits, and the second layer's changes in place of its products.

    The linear terms of the values are written as well. Products and changes are in 16 bits, in
    units of the size of the row's column times the scale of the weights.
    """
    block = tl.program_id(0)
    if block < tiles:
        _tile(z2, w3, b3, z3, block, points, W2, H2, OUT, W3, float("-inf"), True, BIAS, BM, BK, BN)
    else:
        block -= tiles
        groups = tl.cdiv(slots + 1, BR)
        point = block // groups
        slot = block % groups * BR + tl.arange(0, BR)
        live = slot <= slots
        r = point * (slots + 1) + slot
        unit = tl.load(units + r, mask=live, other=1.0) * tl.load(scales)
        target = (begin + point) % batch
        linear_part = tl.zeros((BR, 128), tl.float32)
        for start in range(0, W2, 128):
            n = start + tl.arange(0, 128)
            address = changes + r.to(tl.int64)[:, None] * W2 + n[None, :]
            at_point = tl.load(z2 + point * W2 + n)[None, :]
            steep = tl.load(slope + target * H2 + n, mask=n < H2, other=0.0)[None, :]
            hidden = (
                at_point
                + tl.load(address, mask=live[:, None], other=0.0).to(tl.float32) * unit[:, None]
            )
            hidden = _relu(hidden)
            linear_part += hidden * steep
            change = (hidden - _relu(at_point)) * (1.0 / unit)[:, None]
            tl.store(address, change.to(changes.dtype.element_ty), mask=live[:, None])
        tl.store(parts + r, -tl.sum(linear_part, 1) - tl.load(offset + target), mask=live)


@triton.jit
def _of_points(table, width, first, last, point, n, end, MANY: tl.constexpr):
    """Return for every row its point's row of ``table``, at columns n.

    The tile's rows are of two points or, with MANY, of several.
    """
    if MANY:
        values = tl.load(
            table + point[:, None] * width + n[None, :], mask=n[None, :] < end, other=0.0
        )
    else:
        first_row = tl.load(table + first * width + n, mask=n < end, other=0.0)
        last_row = tl.load(table + last * width + n, mask=n < end, other=0.0)
        values = tl.where((point == first)[:, None], first_row[None, :], last_row[None, :])
    return values


@triton.jit
def _column_sums(
    a, w, z3, unit, point, first, last, row, start,
    W2: tl.constexpr, W3: tl.constexpr, MANY: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Return the sums of softplus over a tile of columns."""
    products = tl.zeros((BM, BN), tl.float32)
    for k in range(0, W2, BK):
        products = tl.dot(a.load([row, k]), w.load([start, k]).T, products)
    j = start + tl.arange(0, BN)
    return _softplus_sum(
        _of_points(z3, W3, first, last, point, j, W3, MANY) + products * unit[:, None], BN
    )


@triton.jit
def _last_fused(
    a, w, narrow, z3, units, scales, parts,
    points, rows, stride,
    W2: tl.constexpr, W3: tl.constexpr, FULL: tl.constexpr, TAIL: tl.constexpr, MANY: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Write the sums of softplus over the columns.

    SPLIT programs share a tile of rows, and take turns in FULL tiles of BN columns. The remaining
    columns are one tile of TAIL (784 = 6 x 128 + 16).
    """
    split = tl.program_id(0) % SPLIT
    row = tl.program_id(0) // SPLIT * BM
    r = row + tl.arange(0, BM)
    point = tl.minimum(r // stride, points - 1)
    first = row // stride
    last = tl.minimum((row + BM - 1) // stride, points - 1)
    unit = tl.load(units + r, mask=r < rows, other=1.0) * (tl.load(scales) * tl.load(scales + 1))
    value = tl.zeros((BM,), tl.float32)
    for tile in range(split, FULL, SPLIT):
        value += _column_sums(
            a, w, z3, unit, point, first, last, row, tile * BN, W2, W3, MANY, BM, BN, BK
        )
    if TAIL > 0:
        if split == FULL % SPLIT:
            value += _column_sums(
                a, narrow, z3, unit, point, first, last, row, FULL * BN, W2, W3, MANY, BM, TAIL, BK
            )
    tl.store(parts + split * rows + r, value, mask=r < rows)


@triton.jit
def _last(
    products, z3, units, scales, parts, out,
    slots, OUT, WIDE,
    W3: tl.constexpr, TURNS: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Write the values from the last layer's products, with a logarithm for every TURNS columns."""
    groups = tl.cdiv(slots + 1, BR)
    point = tl.program_id(0) // groups
    slot = tl.program_id(0) % groups * BR + tl.arange(0, BR)
    live = slot <= slots
    r = point * (slots + 1) + slot
    unit = tl.load(units + r, mask=live, other=1.0) * (tl.load(scales) * tl.load(scales + 1))
    total = tl.zeros((BR, 128), tl.float32)
    for start in range(0, W3, TURNS * 128):
        factor = tl.full((BR, 128), 1.0, tl.float32)
        for turn in tl.static_range(TURNS):
            j = start + turn * 128 + tl.arange(0, 128)
            inside = live[:, None] & (j[None, :] < OUT)
            product = tl.load(
                products + r.to(tl.int64)[:, None] * WIDE + j[None, :], mask=inside, other=0.0
            )
            at_point = tl.load(z3 + point * W3 + j, mask=j < W3, other=float("-inf"))[None, :]
            logits = at_point + product.to(tl.float32) * unit[:, None]
            total += tl.maximum(logits, 0.0)
            factor *= 0.75 * tl.exp2(-1.4426950408889634 * tl.abs(logits)) + 0.75
        total += 0.6931471805599453 * (tl.log2(factor) + TURNS * 0.4150374992788438)
    tl.store(out + r, tl.sum(total, 1) + tl.load(parts + r, mask=live, other=0.0), mask=live)


Config = dict[str, int]

# Configurations of the last layer, tried in order at the first call of every shape. The empty one
# takes the products from the library and runs another kernel after them.
LAST: list[Config] = [
    {},
    {"BM": 128, "BN": 128, "BK": 64, "SPLIT": 3, "num_warps": 8, "num_stages": 3},
]
FILL = 128  # widths are padded to multiples of it
AT_ONCE = 2**28  # 16-bit numbers in all layers together: 512 MiB

chosen: dict[tuple[Any, ...], Config] = {}
timings: dict[tuple[Any, ...], list[tuple[Config, float | str]]] = {}


def _tuned(
    key: tuple[Any, ...], configs: list[Config], launch: Callable[[Config], Tensor]
) -> Tensor:
    """Launch with the fastest configuration, found at the first call with this key.

    During a capture nothing is measured.
    """
    if key in chosen:
        return launch(chosen[key])
    if len(configs) == 1 or torch.cuda.is_current_stream_capturing():
        return launch(configs[0])
    timings[key] = []
    for config in configs:
        try:
            for _ in range(3):
                launch(config)
            torch.cuda.synchronize()
            times = []
            for _ in range(3):
                start, end = (
                    torch.cuda.Event(enable_timing=True),
                    torch.cuda.Event(enable_timing=True),
                )
                torch.cuda._sleep(2_000_000)  # about 1 ms, for the launches to be ahead of the GPU
                start.record()
                for _ in range(5):
                    launch(config)
                end.record()
                end.synchronize()
                times.append(start.elapsed_time(end) / 5)
            timings[key].append((config, min(times)))
        except Exception as error:  # a configuration that does not fit this GPU
            timings[key].append((config, f"{type(error).__name__}: {error}"))
    fit = [(ms, at) for at, (_, ms) in enumerate(timings[key]) if isinstance(ms, float)]
    if not fit:
        raise RuntimeError(f"no configuration of {key[0]} runs on this GPU: {timings[key]}")
    chosen[key] = configs[min(fit)[1]]
    return launch(chosen[key])


def _blocks(matrix: Tensor, height: int, width: int) -> Any:
    """Return a descriptor by which a kernel reads blocks of a matrix."""
    from triton.tools.tensor_descriptor import TensorDescriptor  # Triton 3.4

    return TensorDescriptor.from_tensor(matrix, [height, width])


def _filled(width: int) -> int:
    return triton.cdiv(width, FILL) * FILL


class Layers:
    """Changes from the points, multiplied in 16 bits, layer by layer, through memory.

    Call ``begin``, ``first``, ``second`` and ``last`` in this order. Small tasks share a launch
    with large ones. Rows are [points, slots + 1]. Powers of two keep the 16-bit numbers in
    float16's range: changes of the first layer are below 2 in units of their column's size, the
    second layer's products below 2^12, the last one's below 2^15.
    """

    def __init__(
        self, x: Tensor, which: Tensor | None, w1: Tensor, b1: Tensor | None, w2: Tensor,
        b2: Tensor | None,
        w3: Tensor, b3: Tensor | None, slope: Tensor, offset: Tensor, before: int = 0,
    ) -> None:  # fmt: skip
        self.x = x
        self.which = which
        self.slope = slope
        self.offset = offset
        self.before = before
        self.w1 = w1.contiguous()
        self.w2 = w2.contiguous()
        self.w3 = w3.contiguous()
        self.b1 = b1
        self.b2 = b2
        self.b3 = b3
        self.points, self.inputs = x.shape
        self.slots = (x if which is None else which).shape[1]
        self.rows = self.points * (self.slots + 1)
        self.H2, self.H1 = w2.shape
        self.OUT = len(w3)
        self.W1 = _filled(self.H1)
        self.W2 = _filled(self.H2)
        self.W3 = _filled(self.OUT)
        self.columns = self._new(self.inputs, self.W1)
        self.sizes = self._new(self.inputs)
        self.base = self._new(self.points, self.W1)
        self.z2 = self._new(self.points, self.W2)
        self.z3 = self._new(self.points, self.W3)
        self.largest2 = self._new(triton.cdiv(self.H2, 16))
        self.largest3 = self._new(triton.cdiv(self.OUT, 16))
        self.half2 = self._new(self.W2, self.W1, dtype=torch.float16)
        self.half3 = self._new(self.W3, self.W2, dtype=torch.float16)
        self.scales = self._new(2)
        self.units = self._new(self.rows)
        self.changes1 = self._new(self.rows, self.W1, dtype=torch.float16)
        self.changes2 = self._new(self.rows, self.W2, dtype=torch.float16)
        splits = max(config.get("SPLIT", 0) for config in LAST)
        self.parts = self._new(1 + splits, self.rows)  # the first row holds the linear terms

    def _new(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.x.device)

    def table(self) -> Tensor:
        self.begin()
        self.first()
        self.second()
        return self.last().view(self.points, -1)

    def begin(self) -> None:
        tiles = triton.cdiv(self.points, 16) * (self.W1 // 32)
        columns = triton.cdiv(self.inputs, 16)
        _begin[(tiles + columns + len(self.largest2) + len(self.largest3),)](
            self.x, self.w1, self.x if self.b1 is None else self.b1, self.w2, self.w3,
            self.base, self.columns, self.sizes, self.largest2, self.largest3,
            tiles, columns, len(self.largest2), self.points, self.inputs, self.H1, self.H2,
            self.OUT,
            W1=self.W1, UNIT=1 if self.inputs % 4 else 4, BIAS=self.b1 is not None,
            BM=16, BN=32, BK=32, BR=16, num_warps=4, num_stages=3,
        )  # fmt: skip

    def first(self) -> None:
        tiles = triton.cdiv(self.points, 16) * (self.W2 // 32)
        BW = 256 if self.W1 % 256 == 0 else 128
        TURNS = 8
        blocks = triton.cdiv(self.points, TURNS) * triton.cdiv(self.slots + 1, 16) * (self.W1 // BW)
        _first[(tiles + (self.W2 + self.W3) // 16 + blocks,)](
            self.x, self.x if self.which is None else self.which, self.w2,
            self.x if self.b2 is None else self.b2, self.w3,
            self.base, self.columns, self.sizes, self.largest2, self.largest3,
            self.z2, self.half2, self.half3, self.scales, self.changes1, self.units,
            tiles, self.W2 // 16, self.W3 // 16, self.points, self.slots, self.inputs, self.H1,
            self.H2, self.OUT,
            W1=self.W1, W2=self.W2,
            RAISE2=2.0**10 / triton.next_power_of_2(self.W1),
            RAISE3=2.0**2 / triton.next_power_of_2(self.W2),
            BLOCKS2=triton.next_power_of_2(len(self.largest2)),
            BLOCKS3=triton.next_power_of_2(len(self.largest3)),
            CHOSEN=self.which is not None, BIAS=self.b2 is not None,
            BM=16, BN=32, BK=32, BR=16, BW=BW, TURNS=TURNS, num_warps=4, num_stages=3,
        )  # fmt: skip

    def second(self) -> None:
        # PyTorch's allow_fp16_reduced_precision_reduction concerns sums that are split between
        # blocks; with this many rows none is.
        torch.mm(self.changes1, self.half2.mT, out=self.changes2)
        tiles = triton.cdiv(self.points, 16) * (self.W3 // 32)
        _second[(tiles + self.points * triton.cdiv(self.slots + 1, 16),)](
            self.w3, self.x if self.b3 is None else self.b3, self.z2, self.z3, self.changes2,
            self.units, self.scales,
            self.slope, self.offset, self.parts,
            tiles, self.points, self.before, self.slots, len(self.slope), self.H2, self.OUT,
            W2=self.W2, W3=self.W3, BIAS=self.b3 is not None, BM=16, BN=32, BK=32, BR=16,
            num_warps=4, num_stages=3,
        )  # fmt: skip

    def last(self) -> Tensor:
        """Return the values by the faster way: library products and a kernel, or all in one."""

        def launch(config: Config) -> Tensor:
            return self.last_fused(config) if config else self.last_by_library()

        return _tuned(("last", self.rows.bit_length(), self.H2, self.OUT), LAST, launch)

    def last_by_library(self) -> Tensor:
        wide = triton.cdiv(self.OUT, 8) * 8
        products = torch.mm(self.changes2, self.half3[:wide].mT)
        out = self._new(self.rows)
        _last[(self.points * triton.cdiv(self.slots + 1, 8),)](
            products, self.z3, self.units, self.scales, self.parts, out,
            self.slots, self.OUT, products.shape[1],
            W3=self.W3, TURNS=min(8, self.W3 // 128), BR=8, num_warps=4,
        )  # fmt: skip
        return out

    def last_fused(self, config: Config) -> Tensor:
        BM, BN, BK, SPLIT = (config[size] for size in ("BM", "BN", "BK", "SPLIT"))
        rest = self.OUT % BN
        tail = max(16, triton.next_power_of_2(rest)) if rest else 0
        _last_fused[(triton.cdiv(self.rows, BM) * SPLIT,)](
            _blocks(self.changes2, BM, BK), _blocks(self.half3, BN, BK),
            _blocks(self.half3, tail or BN, BK),
            self.z3, self.units, self.scales, self.parts[1:],
            self.points, self.rows, self.slots + 1,
            W2=self.W2, W3=self.W3, FULL=self.OUT // BN, TAIL=tail, MANY=self.slots + 1 < BM,
            **config,
        )  # fmt: skip
        return self.parts[: 1 + SPLIT].sum(0)


def layer_by_layer(
    x: Tensor, which: Tensor | None, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None,
    w3: Tensor, b3: Tensor | None, slope: Tensor, offset: Tensor,
) -> Tensor:  # fmt: skip
    """Return the table, for as many points at once as AT_ONCE 16-bit numbers allow."""
    slots = (x if which is None else which).shape[1]
    step = max(1, AT_ONCE // ((slots + 1) * sum(_filled(len(w)) for w in (w1, w2, w3))))
    tables = [
        Layers(
            x[begin : begin + step], which if which is None else which[begin : begin + step],
            w1, b1, w2, b2, w3, b3, slope, offset, begin,
        ).table()
        for begin in range(0, len(x), step)
    ]  # fmt: skip
    return tables[0] if len(tables) == 1 else torch.cat(tables)
