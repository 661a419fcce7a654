//! The `tidegate-lab` binary: the allocator of the node, and the command line.

use std::process::ExitCode;

/// The allocator of the node: load generators hold as many connections as it does.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // As in the node; a kernel without the switch only costs memory.
    rustix::thread::disable_transparent_huge_pages(true).ok();
    tidegate_lab::cli::main()
}
