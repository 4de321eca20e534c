"""Make products of 16-bit matrices on a CPU raise, in every process with this folder in PYTHONPATH.

A stand-in for a CPU on which they are illegal instructions: ``CATLOG_FORBID_BF16=1 pytest ...``
puts the folder there. The checks are in the dispatcher, below autograd, autocast and compiled code.
"""

from typing import Any

import torch

MATRICES = ["mm", "addmm", "bmm", "baddbmm", "addbmm", "_addmm_activation", "convolution"]
VECTORS = ["mv", "addmv", "dot", "vdot", "addr"]
PRODUCTS = [
    *(f"{name}{form}" for name in MATRICES + VECTORS for form in ("", ".out")),
    "convolution_backward",
    "linear.out",
    "mkldnn_linear",
    "mkldnn_convolution",
    "_scaled_dot_product_flash_attention_for_cpu",
]


def forbidden(arguments: Any) -> bool:
    return any(
        isinstance(argument, torch.Tensor)
        and argument.device.type == "cpu"
        and argument.dtype in (torch.bfloat16, torch.float16)
        for argument in arguments
    )


def forbid(library: torch.library.Library, name: str) -> None:
    operator, _, overload = name.partition(".")
    original = getattr(getattr(torch.ops.aten, operator), overload or "default")
    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

    def checked(keys: Any, *arguments: Any, **options: Any) -> Any:
        if forbidden([*arguments, *options.values()]):
            raise RuntimeError(
                f"aten::{name}: a product of 16-bit matrices, which not every CPU can do."
            )
        return original.redispatch(keys & below, *arguments, **options)

    library.impl(name, checked, "BackendSelect", with_keyset=True)


aten = torch.library.Library("aten", "IMPL")
for product in PRODUCTS:
    if torch._C._dispatch_has_kernel(f"aten::{product}"):
        forbid(aten, product)
