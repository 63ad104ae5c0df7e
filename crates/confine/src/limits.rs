//! A seccomp filter that lets a process and its children change no other process's resource limits.
//!
//! Landlock does not cover `prlimit`, which only requires the same account. A program could use it to end other
//! processes or take their file descriptors. The filter makes the call fail with `EPERM`.

use seccompiler::{apply_filter, sock_filter};

/// Architectures whose programs these kernels run, as in `linux/audit.h`, with the number of `prlimit64`.
const CALLS: [(u32, u32); 4] = [(X86_64, 302), (I386, 340), (AARCH64, 261), (ARM, 369)];
const X86_64: u32 = 0xc000_003e;
const I386: u32 = 0x4000_0003;
const AARCH64: u32 = 0xc000_00b7;
const ARM: u32 = 0x4000_0028;
/// Bit added to system call numbers of x86-64's second ABI (x32).
const X32: u32 = 0x4000_0000;

// Offsets in `struct seccomp_data`: the call's number, its architecture, and the words of its arguments.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const PROCESS: u32 = 16;
const NEW_LIMIT: [u32; 2] = [32, 36];

// Instructions of the kernel's classic BPF, and return values.
const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const ALLOWED: u32 = 0x7fff_0000;
const NOT_PERMITTED: u32 = 0x0005_0001;

/// Installs the filter for this process, irrevocably.
///
/// # Errors
/// The kernel rejects the filter.
pub(super) fn keep_to_own_limits() -> Result<(), seccompiler::Error> {
    apply_filter(&filter())
}

fn filter() -> Vec<sock_filter> {
    let step = |code, k| sock_filter { code, jt: 0, jf: 0, k };
    let skip = |k, equal, other| sock_filter { code: IF_EQUAL, jt: equal, jf: other, k };
    let mut steps = Vec::new();
    // A block that does not match the call falls through to the next one, and at last to `ALLOWED`.
    for ((architecture, number), left) in CALLS.into_iter().zip((0..4).rev()) {
        steps.extend([
            step(LOAD, ARCHITECTURE),
            skip(architecture, 0, 3),
            step(LOAD, NUMBER),
            step(AND, !X32),
            skip(number, 5 * left + 1, 0),
        ]);
    }
    steps.extend([
        step(RETURN, ALLOWED),
        // The call is about the process itself.
        step(LOAD, PROCESS),
        skip(0, 4, 0),
        // The call only reads limits.
        step(LOAD, NEW_LIMIT[0]),
        skip(0, 0, 3),
        step(LOAD, NEW_LIMIT[1]),
        skip(0, 0, 1),
        step(RETURN, ALLOWED),
        step(RETURN, NOT_PERMITTED),
    ]);
    steps
}
