//! `syncfs`, which the program calls without the C library: the kernel hands each call to a handler in this process.

use std::{io, mem, ptr};

use libc::{c_int, c_long, c_ulong, c_void, siginfo_t, sock_filter, sock_fprog, ucontext_t};

/// The second argument of calls that are let through: those of the handler itself. The call has no second argument.
pub(crate) const PASS: c_ulong = 0x5359_4e43;

/// Where the kernel shows a filter the number of a call and the lower half of its second argument (`struct seccomp_data`).
const NUMBER: u32 = 0;
const SECOND_ARGUMENT: u32 = 24;

/// From now on this process and those that it starts have no other way: none but the operator calls it.
pub(crate) fn syncfs_calls() {
    let load = |offset| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    // If it is not so, that many further statements are passed over.
    let is = |value, otherwise| statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, otherwise, value);
    let answer = |what| statement(libc::BPF_RET | libc::BPF_K, 0, 0, what);
    let mut filter = [
        load(NUMBER),
        is(u32::try_from(libc::SYS_syncfs).unwrap(), 2),
        load(SECOND_ARGUMENT),
        is(u32::try_from(PASS).unwrap(), 1),
        answer(libc::SECCOMP_RET_ALLOW),
        answer(libc::SECCOMP_RET_TRAP),
    ];
    let program = sock_fprog { len: u16::try_from(filter.len()).unwrap(), filter: filter.as_mut_ptr() };
    // SAFETY: `action` is whole, its handler is of the kind that `SA_SIGINFO` asks for, and the kernel copies both structures.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGSYS, &raw const action, ptr::null_mut()), 0);
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

fn statement(code: u32, if_so: u8, otherwise: u8, value: u32) -> sock_filter {
    sock_filter { code: u16::try_from(code).unwrap(), jt: if_so, jf: otherwise, k: value }
}

/// It comes at the call itself, so that all may be done here that the caller might do.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "what the kernel keeps in a register")]
extern "C" fn handle(_signal: c_int, _info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a handler with `SA_SIGINFO` the registers of its thread, which waits meanwhile.
    let registers = unsafe { &mut (*context.cast::<ucontext_t>()).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    let (folder, result) = (registers.gregs[libc::REG_RDI as usize], &mut registers.gregs[libc::REG_RAX as usize]);
    #[cfg(target_arch = "aarch64")]
    let (folder, result) = (registers.regs[0], &mut registers.regs[0]);
    let answer = match super::synchronise(folder as c_int, libc::SYS_syncfs, true) {
        0 => 0,
        _ => -io::Error::last_os_error().raw_os_error().unwrap(),
    };
    *result = c_long::from(answer) as _;
}
