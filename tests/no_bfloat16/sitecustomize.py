"""Make products of 16-bit matrices on a CPU raise, in every process with this folder in PYTHONPATH.

A stand-in for a CPU on which they are illegal instructions: ``CATLOG_FORBID_BF16=1 pytest ...``
puts the folder there. The checks are in the dispatcher, below autograd, autocast and compiled code.
"""

from typing import Any

import torch

PRODUCTS = [
    "mm",
    "mm.out",
    "addmm",
    "addmm.out",
    "bmm",
    "bmm.out",
    "baddbmm",
    "baddbmm.out",
    "addbmm",
    "addbmm.out",
    "mv",
    "mv.out",
    "addmv",
    "addmv.out",
    "dot",
    "dot.out",
    "vdot",
    "vdot.out",
    "addr",
    "addr.out",
    "_addmm_activation",
    "_addmm_activation.out",
    "convolution",
    "convolution.out",
    "convolution_backward",
    "linear.out",
    "mkldnn_linear",
    "mkldnn_convolution",
    "_scaled_dot_product_flash_attention_for_cpu",
]


def forbidden(given: Any) -> bool:
    return any(
        isinstance(each, torch.Tensor)
        and each.device.type == "cpu"
        and each.dtype in (torch.bfloat16, torch.float16)
        for each in given
    )


def forbid(library: torch.library.Library, name: str) -> None:
    operator, _, overload = name.partition(".")
    original = getattr(getattr(torch.ops.aten, operator), overload or "default")
    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

    def checked(keys: Any, *given: Any, **named: Any) -> Any:
        if forbidden([*given, *named.values()]):
            raise RuntimeError(
                f"aten::{name}: a product of 16-bit matrices, which not every CPU can do."
            )
        return original.redispatch(keys & below, *given, **named)

    library.impl(name, checked, "BackendSelect", with_keyset=True)


aten = torch.library.Library("aten", "IMPL")
for product in PRODUCTS:
    if torch._C._dispatch_has_kernel(f"aten::{product}"):
        forbid(aten, product)
