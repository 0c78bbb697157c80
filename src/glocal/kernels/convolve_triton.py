"""One launch that convolves tokens where they lie: depth-wise, with what stands before and after it on request."""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportIndexIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportAttributeAccessIssue=false
# ruff: noqa: RUF005  a Triton tuple grows by addition alone
from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from glocal.kernels.activate_triton import activate, slope
from glocal.kernels.rows_triton import Line, channels

BUSY = 1024  # programs of four warps that fill a large GPU; with fewer, shorter strips spread the work
AHEAD = 6  # columns asked for before they are used
BESIDE = 3  # columns of what is added, likewise
STRIP = 16  # columns a program walks at most; its code is unrolled
WORK, WORK_SMALL = 256, 512  # outputs of a column in a program of four warps, and with at most nine taps


class Place(NamedTuple):
    """Where a group of channels lies in the rows of (B, N, row) tokens: shares lie `part` apart from `start` on."""

    rows: Tensor
    part: int = 0
    start: int = 0

    def strides(self) -> tuple[int, int, int]:
        """Give the distances of tokens and shares, and the start, as constants for a kernel."""
        return int(self.rows.stride(1)), int(self.part), int(self.start)


@triton.jit
def spread(channel, SHARE: tl.constexpr, PART: tl.constexpr, START: tl.constexpr):
    """Find a group's channel in the row."""
    return (channel // SHARE) * PART + channel % SHARE + START


@triton.jit
def load_taps(taps, c, fits, STEP: tl.constexpr, CHANNEL: tl.constexpr, COUNT: tl.constexpr, FLIP: tl.constexpr):
    """Keep every tap of these channels in registers: each is used once a column."""
    found = ()
    for tap in tl.static_range(COUNT):
        at = (COUNT - 1 - tap) if FLIP else tap
        found = found + (tl.load(taps + at * STEP + c * CHANNEL, mask=fits, other=0.0).to(tl.float32)[None, :],)
    return found


@triton.jit
def on_map(y, left, real, dy, AT: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, STRIP: tl.constexpr):
    """Tell where the map has a token dy lines below each line, in the column AT steps right of the strip."""
    seen = real & (y + dy >= 0) & (y + dy < HEIGHT)
    if STRIP < WIDTH:
        seen = seen & (left + AT >= 0) & (left + AT < WIDTH)
    return seen


@triton.jit
def load_column(
    here, y, left, real, fits, AT: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TOKEN: tl.constexpr, SIDE: tl.constexpr, STRIP: tl.constexpr,
):  # fmt: skip
    """Ask for the SIDE tokens around each line in the column AT steps right of the strip; zero outside the map."""
    found = ()
    for dy in tl.static_range(SIDE):
        seen = on_map(y, left, real, dy - SIDE // 2, AT, HEIGHT, WIDTH, STRIP)
        where = here + ((dy - SIDE // 2) * WIDTH + AT) * TOKEN
        found = found + (tl.load(where, mask=seen[:, None] & fits[None, :], other=0.0),)
    return found


@triton.jit
def load_beside(more, left, inside, AT: tl.constexpr, WIDTH: tl.constexpr, TOKEN: tl.constexpr, STRIP: tl.constexpr):
    """Ask for what stands beside the output column AT of the strip."""
    mask = inside
    if WIDTH % STRIP != 0:
        mask = inside & (left + AT < WIDTH)[:, None]
    return tl.load(more + AT * TOKEN, mask=mask, other=0.0)


@triton.jit
def _convolve(
    x, taps, bias, add, out, sums, scale, shift, mean, rate, lines, x_batch, add_batch, out_batch,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, PREFIX: tl.constexpr,
    X_TOKEN: tl.constexpr, X_PART: tl.constexpr, X_START: tl.constexpr,
    TAP_STEP: tl.constexpr, TAP_CHANNEL: tl.constexpr,
    ADD_TOKEN: tl.constexpr, ADD_PART: tl.constexpr, ADD_START: tl.constexpr,
    OUT_TOKEN: tl.constexpr, OUT_PART: tl.constexpr, OUT_START: tl.constexpr,
    SHARE: tl.constexpr, DIM: tl.constexpr, SIDE: tl.constexpr, FLIP: tl.constexpr, BEFORE: tl.constexpr,
    AFTER: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, POOL: tl.constexpr, LINE: tl.constexpr,
    TOTALS: tl.constexpr, BACK: tl.constexpr, PASS: tl.constexpr,
    STRIP: tl.constexpr, LINES: tl.constexpr, LANES: tl.constexpr, AHEAD: tl.constexpr, BESIDE: tl.constexpr,
):  # fmt: skip
    """Walk a strip of columns: each column of input is read once and added to the SIDE outputs that it reaches.

    A line is one row of patches of one image. The first total is the output that this column completes. Columns are
    asked for AHEAD steps before they are used: the arithmetic of one column does not last as long as memory takes.

    LINE scales and shifts the input before its activation, TOTALS sums the output and its square. BACK is the way back:
    the output is multiplied by the activation's slope at the scaled and shifted `add`, and summed, as it is and times
    the normalised `add`.
    """
    # One axis for channels and lines: it alone may be longer than 65,535. Channels of the same lines go together.
    parts: tl.constexpr = (DIM + LANES - 1) // LANES
    block, strip = tl.program_id(0) // parts, tl.program_id(1)
    line = block * LINES + tl.arange(0, LINES)
    c = (tl.program_id(0) % parts) * LANES + tl.arange(0, LANES)
    left = strip * STRIP + line * 0  # a block, for masks
    half: tl.constexpr = SIDE // 2
    image, y = (line // HEIGHT).to(tl.int64), line % HEIGHT
    real, fits = line < lines, c < DIM
    inside = real[:, None] & fits[None, :]
    weights = load_taps(taps, c, fits, TAP_STEP, TAP_CHANNEL, SIDE * SIDE, FLIP)
    first = PREFIX + y * WIDTH + left
    here = x + (image * x_batch + first * X_TOKEN)[:, None] + spread(c, SHARE, X_PART, X_START)[None, :]
    goal = out + (image * out_batch + first * OUT_TOKEN)[:, None] + spread(c, SHARE, OUT_PART, OUT_START)[None, :]
    more = add + (image * add_batch + first * ADD_TOKEN)[:, None] + spread(c, SHARE, ADD_PART, ADD_START)[None, :]
    fresh = tl.zeros((LINES, LANES), dtype=tl.float32)
    pooled = fresh
    turned = fresh
    if LINE or BACK:
        s, t = channels(scale, c, fits), channels(shift, c, fits)
    if BACK:
        m, r = channels(mean, c, fits), channels(rate, c, fits)
    if BIAS:
        fresh += tl.load(bias + c, mask=fits, other=0.0).to(tl.float32)[None, :]
    totals = ()
    for _ in tl.static_range(SIDE):
        totals = totals + (fresh,)
    waiting = ()
    for j in tl.static_range(AHEAD):
        if STRIP < WIDTH or (j >= half and j - half < WIDTH):
            waiting = waiting + (load_column(here, y, left, real, fits, j - half, HEIGHT, WIDTH, X_TOKEN, SIDE, STRIP),)
        else:
            waiting = waiting + ((),)
    others = ()
    if ADD or BACK:
        for j in tl.static_range(BESIDE if BESIDE < STRIP else STRIP):  # Triton 3.4's min() gives no constant
            others = others + (load_beside(more, left, inside, j, WIDTH, ADD_TOKEN, STRIP),)
    for j in tl.static_range(STRIP + SIDE - 1):
        if j + AHEAD < STRIP + SIDE - 1 and (STRIP < WIDTH or (j + AHEAD >= half and j + AHEAD - half < WIDTH)):
            waiting = waiting + (
                load_column(here, y, left, real, fits, j + AHEAD - half, HEIGHT, WIDTH, X_TOKEN, SIDE, STRIP),
            )
        else:
            waiting = waiting + ((),)
        if STRIP < WIDTH or (j >= half and j - half < WIDTH):
            for dy in tl.static_range(SIDE):
                value = waiting[j][dy].to(tl.float32)
                if LINE:  # nothing is outside the map, but the line of nothing is something
                    value = activate(value * s + t, BEFORE)
                    seen = on_map(y, left, real, dy - half, j - half, HEIGHT, WIDTH, STRIP)
                    value = tl.where(seen[:, None] & fits[None, :], value, 0.0)
                elif not BACK:
                    value = activate(value, BEFORE)
                reached = ()
                for on in tl.static_range(SIDE):
                    reached = reached + (totals[on] + value * weights[dy * SIDE + SIDE - 1 - on],)
                totals = reached
        if j >= SIDE - 1:
            done = activate(totals[0], AFTER)
            mask = inside
            if WIDTH % STRIP != 0:
                mask = inside & (left + (j - SIDE + 1) < WIDTH)[:, None]
            if ADD or BACK:
                beside = others[j - SIDE + 1].to(tl.float32)
                if j - SIDE + 1 + BESIDE < STRIP:
                    others = others + (load_beside(more, left, inside, j - SIDE + 1 + BESIDE, WIDTH, ADD_TOKEN, STRIP),)
            if ADD:
                done += beside
            if BACK:
                done *= slope(beside * s + t, BEFORE)
            tl.store(goal + (j - SIDE + 1) * OUT_TOKEN, done.to(out.dtype.element_ty), mask=mask)
            if POOL or TOTALS or BACK:
                done = tl.where(mask, done, 0.0)
                pooled += done
            if TOTALS:
                turned += done * done
            if BACK:
                turned += done * (beside - m) * r
        following = ()
        for on in tl.static_range(1, SIDE):
            following = following + (totals[on],)
        totals = following + (fresh,)
    if PASS and PREFIX > 0:  # prefix tokens have no neighbours and pass as they are, with the image's first line
        mask = inside & (y + left == 0)[:, None]
        for token in tl.static_range(PREFIX):
            back = PREFIX - token
            done = tl.load(here - back * X_TOKEN, mask=mask, other=0.0).to(tl.float32)
            if ADD:
                done += tl.load(more - back * ADD_TOKEN, mask=mask, other=0.0).to(tl.float32)
            tl.store(goal - back * OUT_TOKEN, done.to(out.dtype.element_ty), mask=mask)
    if POOL:
        at = line.to(tl.int64) * tl.num_programs(1) + strip
        tl.store(sums + (at * DIM)[:, None] + c[None, :], pooled, mask=inside)
    if TOTALS or BACK:
        found = sums + (block.to(tl.int64) * tl.num_programs(1) + strip) * 2 * DIM + c
        tl.store(found, tl.sum(pooled, axis=0), mask=fits)
        tl.store(found + DIM, tl.sum(turned, axis=0), mask=fits)


def convolve(
    x: Place,
    weight: Tensor,
    out: Place,
    lattice: tuple[int, int, int],
    group: tuple[int, int],
    *,
    flip: bool = False,
    add: Place | None = None,
    bias: Tensor | None = None,
    around: tuple[int, int] = (0, 0),
    sums: Literal["", "lines", "totals"] = "",
    line: Line | None = None,
    back: Tensor | None = None,
) -> Tensor:
    """Write one group's convolution into `out`, and give its sums.

    `group` is (channels in a share, shares), `lattice` (height, width, prefix), `around` the activations before and
    after. `add` is added at the end. `sums` are over each line's strips, (B, lines, C), or of the output and its
    square, (programs, 2, C). With a `line`, prefix tokens are not written, and the line comes before the activation;
    or, with `back`, the output is taken back through both to `back`, where the line began (`_convolve`: BACK).
    """
    height, width, prefix = (int(each) for each in lattice)
    share, parts = group
    dim, images = share * parts, x.rows.shape[0]
    taps = taps_first(weight)
    strip, lines, lanes, warps = tiles(images * height, width, dim, weight.shape[-1])
    strips, blocks = triton.cdiv(width, strip), triton.cdiv(images * height, lines)
    shape = (
        (images, height * strips, dim)
        if sums == "lines"
        else (blocks * strips, 2, dim if sums or back is not None else 0)
    )
    found = torch.empty(shape, dtype=torch.float32, device=x.rows.device)
    # Never `out` twice: a traced graph would copy it.
    beside = Place(back) if back is not None else x if add is None else add
    x_token, x_part, x_start = x.strides()
    add_token, add_part, add_start = beside.strides()
    out_token, out_part, out_start = out.strides()
    wrap_triton(_convolve)[(triton.cdiv(dim, lanes) * blocks, strips)](
        x.rows, taps, taps if bias is None else bias, beside.rows, out.rows, found, *(line or (taps,) * 4),
        images * height, x.rows.stride(0), beside.rows.stride(0), out.rows.stride(0),
        HEIGHT=height, WIDTH=width, PREFIX=prefix, X_TOKEN=x_token, X_PART=x_part, X_START=x_start,
        TAP_STEP=taps.stride(0), TAP_CHANNEL=taps.stride(1),
        ADD_TOKEN=add_token, ADD_PART=add_part, ADD_START=add_start,
        OUT_TOKEN=out_token, OUT_PART=out_part, OUT_START=out_start,
        SHARE=share, DIM=dim, SIDE=weight.shape[-1], FLIP=flip, BEFORE=around[0], AFTER=around[1],
        BIAS=bias is not None, ADD=add is not None, POOL=sums == "lines", LINE=line is not None and back is None,
        TOTALS=sums == "totals", BACK=back is not None, PASS=line is None, STRIP=strip, LINES=lines, LANES=lanes,
        AHEAD=AHEAD, BESIDE=BESIDE, num_warps=warps,
    )  # fmt: skip
    return found


def tiles(lines: int, width: int, dim: int, side: int) -> tuple[int, int, int, int]:
    """Choose columns, lines and channels of a program, and its warps.

    A thread has two channels of a line (four with at most nine taps): more would not leave registers for the taps.
    """
    lanes = min(64, max(16, triton.next_power_of_2(dim)))
    each = (WORK if side > 3 else WORK_SMALL) // lanes
    strip = triton.cdiv(width, triton.cdiv(width, STRIP))
    programs = triton.cdiv(lines, each) * triton.cdiv(dim, lanes) * triton.cdiv(width, strip)
    if programs >= BUSY:
        return strip, each, lanes, 4
    return min(width, 4), max(1, each // 4), lanes, 1


def taps_first(weight: Tensor) -> Tensor:
    """See a (C, 1, k, k) weight as (taps, C), channels side by side; `lay_taps` makes that free."""
    taps = weight.flatten(1).t()
    return taps if taps.stride(1) == 1 else taps.contiguous()
