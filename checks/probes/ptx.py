"""The smallest kernel that proves a GPU computes: p[i] = i * 2654435761 + seed, as PTX every driver since 2018 takes.

PTX, not machine code: the driver translates it for whatever card is there, so nothing has to be compiled here.
"""

from __future__ import annotations

from array import array
from typing import Final

NAME: Final = b"gpuctl_probe"

SOURCE: Final = b"""
.version 6.4
.target sm_52
.address_size 64

.visible .entry gpuctl_probe(
    .param .u64 p,
    .param .u32 n,
    .param .u32 seed
)
{
    .reg .pred %outside;
    .reg .b32 %r<8>;
    .reg .b64 %rd<5>;

    ld.param.u64 %rd1, [p];
    ld.param.u32 %r1, [n];
    ld.param.u32 %r2, [seed];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %outside, %r6, %r1;
    @%outside bra END;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r6, 4;
    add.u64 %rd4, %rd2, %rd3;
    mov.u32 %r7, 0x9E3779B1;
    mad.lo.u32 %r7, %r6, %r7, %r2;
    st.global.u32 [%rd4], %r7;
END:
    ret;
}
"""
"""0x9E3779B1 is 2654435761."""


def expected(n: int, seed: int) -> bytes:
    """The `n` u32 values the kernel must leave, in this machine's byte order."""
    return array("I", ((i * 2654435761 + seed) & 0xFFFFFFFF for i in range(n))).tobytes()
