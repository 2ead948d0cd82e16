"""Memory that kernels reach by its address, and the functions of the C library that they call.

A call of a kernel takes longer with each array that it gets, so kernels that serve single requests get one array with
the addresses of all others. Interpreted, there are no addresses.
"""

from __future__ import annotations

import sys
from typing import Any

from ...protocol.storage.arrays.jit import INTERPRETED

AVAILABLE = sys.platform == "linux" and not INTERPRETED
"""True if kernels can serve connections on this platform and in this mode: they need epoll, and the names that Linux's
C libraries give their functions."""

MANY = 1 << 40
"""Number of items of an array whose length its user knows."""
AGAIN = 11
NO_WAIT = 0x40
NO_SIGNAL = 0x4000

if AVAILABLE:
    from numba import types
    from numba.core.cgutils import pack_array
    from numba.extending import intrinsic
    from numba.np.arrayobj import populate_array

    epoll_wait: Any = types.ExternalFunction(
        "epoll_wait", types.int32(types.int32, types.intp, types.int32, types.int32)
    )
    recv: Any = types.ExternalFunction("recv", types.intp(types.int32, types.intp, types.intp, types.int32))
    send: Any = types.ExternalFunction("send", types.intp(types.int32, types.intp, types.intp, types.int32))
    memcmp: Any = types.ExternalFunction("memcmp", types.int32(types.intp, types.intp, types.intp))
    _int_pointer: Any = types.CPointer(types.int32)  # type: ignore[no-untyped-call] # Numba is untyped
    errno_location: Any = types.ExternalFunction("__errno_location", _int_pointer())
    _populate: Any = populate_array
    _pack: Any = pack_array

    def _array_at(kind: Any, item_bytes: int) -> Any:
        """Return a function of an address and a number of items that makes an array of what is there."""
        array_type = types.Array(kind, 1, "C")

        @intrinsic
        def make(typing_context: Any, address: Any, count: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                array = context.make_array(array_type)(context, builder)
                size = context.get_constant(types.intp, item_bytes)
                data = builder.inttoptr(args[0], context.get_data_type(kind).as_pointer())
                shape, strides = _pack(builder, [args[1]]), _pack(builder, [size])
                _populate(array, data, shape, strides, size, None)
                return array._getvalue()

            return array_type(types.int64, types.int64), generate

        return make

    bytes_at = _array_at(types.uint8, 1)
    integers_at = _array_at(types.int64, 8)
    words_at = _array_at(types.int32, 4)
