"""MeshGEMM in one file, with nothing but torch and Triton: C = A B on a mesh of virtual cores.

On a wafer-scale chip a core reads and writes its own SRAM alone. All else must be sent to it, core by core, and every
link on the way costs time. Core (i, j) of a P x P mesh starts with the tiles A[i, j] and B[i, j]. It is to end with
C[i, j], the sum of A[i, k] B[k, j] over all k. MeshGEMM (WaferLLM, OSDI 2025, section 5) passes the tiles around rings.
A core never holds more than a tile of each matrix and the two that arrive. No tile crosses more than two links at a
time, however large the mesh is.

Here a program instance of the kernel is a core. Its SRAM is its slice of a tensor in global memory; it sends a tile by
a write to the mailbox of another core. A launch is a round, so that all mail has arrived when the next round begins.

    TRITON_INTERPRET=1 python docs/examples/one_file.py   # without a GPU
    python docs/examples/one_file.py                      # on a GPU
"""

import torch
import triton
import triton.language as tl


def ring(side):
    """Return the cores of a mesh row or column in the order of their ring: 0 2 4 3 1 of five, and back to 0.

    It goes up over the even cores and down over the odd ones, so that a step crosses one or two links. The plain ring
    0 1 2 3 4 (Cannon's) has a step back from 4 to 0, over the whole line, for which every round would have to wait.
    """
    return torch.tensor([*range(0, side, 2), *reversed(range(1, side, 2))])


def alignment(side):
    """Yield for each round how many ring steps the tiles of A in mesh row i, and of B in mesh column i, move: [side].

    A core can only multiply A[i, k] and B[k, j] of the same k. So row i moves its tiles of A back by the position of i
    on the ring, and column j its tiles of B by the position of j. Both tiles of core (i, j) then have the k whose
    position is the sum of these two. A line takes the shorter way around; one that is done stays (0) while others move.
    """
    position = ring(side).argsort()
    steps = torch.where(position <= side // 2, -position, side - position)
    for number in range(side // 2):
        yield steps.sign() * (steps.abs() > number)


def receivers(steps):
    """Return the core to which each core sends its tile of A, along its row, and of B, along its column: [P * P] each.

    `steps` are those of `alignment`, or all 1 for a round of products. Core (i, j) has number i * P + j. The cores of
    a line that stays send to themselves.
    """
    side = len(steps)
    line, order = torch.arange(side), ring(side)
    to = order[(order.argsort() + steps[:, None]) % side]  # [line, core on it]
    return (line[:, None] * side + to).flatten(), (to.T * side + line).flatten()


@triton.jit
def one_round(
    a_ptr, b_ptr, a_mailboxes, b_mailboxes, c_ptr, a_receivers, b_receivers,
    M: tl.constexpr, K: tl.constexpr, N: tl.constexpr, MULTIPLY: tl.constexpr,
):  # fmt: skip
    """Send a core's tiles of A and B on, and add their product to its tile of C meanwhile."""
    core = tl.program_id(0)
    m, k, n = tl.arange(0, M), tl.arange(0, K), tl.arange(0, N)
    in_a, in_b = m[:, None] * K + k[None, :], k[:, None] * N + n[None, :]  # offsets within a tile
    a, b = tl.load(a_ptr + core * M * K + in_a), tl.load(b_ptr + core * K * N + in_b)
    tl.store(a_mailboxes + tl.load(a_receivers + core) * M * K + in_a, a)
    tl.store(b_mailboxes + tl.load(b_receivers + core) * K * N + in_b, b)
    if MULTIPLY:
        c_ptrs = c_ptr + core * M * N + m[:, None] * N + n[None, :]
        tl.store(c_ptrs, tl.dot(a, b, tl.load(c_ptrs), input_precision="ieee"))


def mesh_gemm(a, b, side):
    """Return a @ b in fp32, by side x side cores. Rows and columns of their tiles are powers of two, at least 16."""
    a_now, b_now = (x.unflatten(0, (side, -1)).unflatten(2, (side, -1)).transpose(1, 2).contiguous() for x in (a, b))
    (m, k), n = a_now.shape[2:], b_now.shape[3]  # sizes of tiles; [P, P] of them lie core by core
    a_next, b_next = torch.empty_like(a_now), torch.empty_like(b_now)  # the mailboxes
    c = torch.zeros(side, side, m, n, device=a.device)

    aligning = [(steps, False) for steps in alignment(side)]
    multiplying = [(torch.ones(side, dtype=int), True)] * side  # a core meets each k once, in the order of the ring
    for steps, multiply in aligning + multiplying:
        to = (cores.to(a.device) for cores in receivers(steps))
        one_round[(side * side,)](a_now, b_now, a_next, b_next, c, *to, m, k, n, multiply)
        a_now, a_next, b_now, b_next = a_next, a_now, b_next, b_now  # tiles that arrived are sent on next
    return c.transpose(1, 2).reshape(a.shape[0], b.shape[1])


if __name__ == "__main__":
    SIDE, DEVICE = 6, "cuda" if torch.cuda.is_available() else "cpu"
    if DEVICE == "cpu" and not triton.knobs.runtime.interpret:
        raise SystemExit("no GPU is here; set TRITON_INTERPRET=1")
    a, b = torch.randn(SIDE * 16, SIDE * 32, device=DEVICE), torch.randn(SIDE * 32, SIDE * 16, device=DEVICE)
    torch.testing.assert_close(mesh_gemm(a, b, SIDE), a @ b, rtol=1e-4, atol=1e-4)
    print(f"MeshGEMM on {SIDE} x {SIDE} cores is right: {SIDE // 2} rounds of alignment, {SIDE} of products")
