"""Counting kernels without a GPU: operations counted by hand, and that every row of the benchmark comes out."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import kernels
from benchmarks.kernels import counting

BFLOAT16 = {"device": "meta", "dtype": torch.bfloat16}


def test_a_linear_layer_by_hand() -> None:
    layer, x = nn.Linear(64, 32, bias=False, **BFLOAT16), torch.empty(2, 8, 64, **BFLOAT16)
    with counting() as count:
        assert x.is_cuda
        y = layer(x)
    # 16 rows; x, W and y move once, in 2 bytes each.
    assert (count.kernels, count.flop, count.bytes) == (1, 2 * 16 * 64 * 32, 2 * (16 * 64 + 64 * 32 + 16 * 32))
    assert count.peak == count.bytes
    assert count.milliseconds == pytest.approx(0.017)  # far less to do than to launch
    with counting() as count:
        y.backward(torch.empty_like(y))  # the weight's gradient alone: 32 x 64, from sums over 16 rows
    assert (count.kernels, count.flop) == (1, 2 * 16 * 64 * 32)


def test_a_product_as_long_as_its_flop_or_its_bytes_take() -> None:
    large, thin = torch.empty(8192, 8192, **BFLOAT16), torch.empty(8192, 1, **BFLOAT16)
    with counting() as count:
        large @ large
    busy = 1e3 * 2 * 8192**3 / kernels.BFLOAT16_PER_S
    assert count.milliseconds == pytest.approx(busy)
    with counting() as count:
        large @ thin
    assert count.milliseconds == pytest.approx(1e3 * 2 * (8192**2 + 2 * 8192) / kernels.BYTES_PER_S)


def test_attention_is_one_kernel_and_three_for_a_mask_of_truth_values() -> None:
    q, mask = torch.empty(2, 4, 16, 8, **BFLOAT16), torch.ones(2, 1, 16, 16, dtype=torch.bool, device="meta")
    with counting() as count:
        F.scaled_dot_product_attention(q, q, q)
    assert (count.kernels, count.flop) == (1, 2 * 2 * (2 * 4 * 16 * 16 * 8))  # q k^T, and its product with v
    with counting() as count:
        F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    assert count.kernels == 4  # torch makes numbers of the mask: not, 0, where


@pytest.mark.parametrize(("shapes", "expected"), [([(8,)] * 110, 1), ([(8,)] * 111, 2), ([(65_536 * 321,)], 2)])
def test_a_multi_tensor_operation_takes_few_kernels(shapes: list[tuple[int]], expected: int) -> None:
    tensors = [torch.empty(shape, device="meta") for shape in shapes]
    with counting() as count:
        torch._foreach_mul_(tensors, 2.0)
    assert count.kernels == expected


@pytest.mark.parametrize("model", ["tiny", pytest.param("t5-tiny", marks=pytest.mark.slow)])
def test_rows_of_the_benchmark(model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = ["--prompt-tokens", "12", "--actions", "3", "--action-tokens", "2"]
    monkeypatch.setattr("sys.argv", ["kernels", "--models", model, "--rows", "2", "4", *lengths])
    kernels.main()
    printed = capsys.readouterr()
    rows = {(row["operation"], row["rows"]): row for row in json.loads(printed.out)}
    assert rows.keys() == {(operation, n) for operation in ("scoring", "sac", "ppo") for n in (2, 4)}
    for operation in ("scoring", "sac", "ppo"):
        few, many = rows[operation, 2], rows[operation, 4]
        assert many["kernels"] == few["kernels"]  # launches do not depend on the rows: no chunk of logits is full
    # SAC adds to PPO's pass at s two passes at s'.
    assert rows["scoring", 4]["kernels"] < rows["ppo", 4]["kernels"] < rows["sac", 4]["kernels"]
    # So little is to be done that launching is the bound: to act on two rows once, and to learn from them 16 times.
    launched = 17e-6 * (rows["scoring", 2]["kernels"] + 16 * rows["sac", 2]["kernels"])
    assert rows["sac", 2]["hours_h100"] == pytest.approx(400_000 / 2 * launched / 3600, rel=0.01)
    assert rows["scoring", 2]["hours_h100"] is None
    table = [line for line in printed.err.splitlines() if line.startswith(model)]
    assert [line.split()[1:4] for line in table] == [
        [operation, str(n), str(row["kernels"])] for (operation, n), row in rows.items()
    ]
